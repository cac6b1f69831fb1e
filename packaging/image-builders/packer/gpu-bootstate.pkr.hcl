# In this directory, after `packaging/build deb`: packer init . && packer build .
# What is in the build block goes into a template of your own as it is; source.pkr.hcl is an example
# of a Debian cloud image.

variable "deb" {
  type        = string
  description = "The package that packaging/build deb made."
}

variable "config" {
  type        = string
  default     = "../config.yaml"
  description = "Of this very name: config.yaml."
}

build {
  sources = ["source.qemu.node"]

  provisioner "file" {
    sources     = [var.deb, var.config, "../50-gpu-bootstate.preset"]
    destination = "/tmp/"
  }

  provisioner "shell" {
    # As root: sudo is needed where the image's user is another.
    execute_command = "chmod +x {{ .Path }}; sudo -n {{ .Vars }} {{ .Path }}"
    script          = "install-gpu-bootstate.sh"
  }
}
