// Renders a chart as Helm does: Go's own templates, with sprig. Values come as JSON on stdin.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"text/template"

	"github.com/Masterminds/sprig"
)

type files struct{ chart string }

func (f files) Get(name string) string {
	text, err := os.ReadFile(filepath.Join(f.chart, name))
	if err != nil {
		return "" // as Helm does
	}
	return string(text)
}

func fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func main() {
	chart, namespace := os.Args[1], os.Args[2]
	var values map[string]interface{}
	fail(json.NewDecoder(os.Stdin).Decode(&values))
	paths, err := filepath.Glob(filepath.Join(chart, "templates", "*.yaml"))
	fail(err)
	sort.Strings(paths)
	top := template.New("chart").Funcs(sprig.TxtFuncMap()).Option("missingkey=zero")
	for _, path := range paths {
		text, err := os.ReadFile(path)
		fail(err)
		_, err = top.New(filepath.Base(path)).Parse(string(text))
		fail(err)
	}
	for _, path := range paths {
		var out strings.Builder
		fail(top.ExecuteTemplate(&out, filepath.Base(path), map[string]interface{}{
			"Values":  values,
			"Files":   files{chart},
			"Release": map[string]interface{}{"Namespace": namespace, "Name": "gpu-bootstate"},
		}))
		if text := strings.TrimSpace(out.String()); text != "" {
			fmt.Printf("---\n%s\n", text)
		}
	}
}
