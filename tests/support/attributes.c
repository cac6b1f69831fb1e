/*
 * Makes plain files under FAKE_ROOT answer write(2) as the kernel and the driver answer at the
 * attributes of the same names. LD_PRELOADed; only write(2) is looked at.
 *
 * host-interfaces.md 2.3 (current_vgpu_type), 1.3 (unbindLock), 3 (mdev); the kernel's drivers/base
 * (bind, unbind). FAKE_ERRNO, a file of lines "basename errno [times]", plants failures.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static const char *root(void) { return getenv("FAKE_ROOT"); }

static int number_at(const char *path, int missing)
{
    int number = missing;
    FILE *file = fopen(path, "r");
    if (file) {
        if (fscanf(file, "%d", &number) != 1) number = missing;
        fclose(file);
    }
    return number;
}

static int put(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    if (!file) return ENOENT;
    fprintf(file, "%s\n", text);
    fclose(file);
    return 0;
}

static void kernel_says(const char *text)
{
    char path[PATH_MAX];
    struct timespec now;
    snprintf(path, sizeof path, "%s/dev/kmsg", root());
    clock_gettime(CLOCK_MONOTONIC, &now);
    FILE *file = fopen(path, "a");
    if (!file) return;
    fprintf(file, "4,1,%lld,-;%s\n", now.tv_sec * 1000000LL + now.tv_nsec / 1000, text);
    fclose(file);
}

static int planted(const char *name)
{
    char path[PATH_MAX], other[128];
    int code, times, found = 0;
    long at;
    snprintf(path, sizeof path, "%s/errno", root());
    FILE *file = fopen(path, "r+");
    if (!file) return 0;
    while ((at = ftell(file)) >= 0 && fscanf(file, "%127s %d %d\n", other, &code, &times) == 3)
        if (!strcmp(other, name) && times > 0) {
            found = code;
            fseek(file, at, SEEK_SET);
            fprintf(file, "%s %d %d\n", other, code, times - 1);
            break;
        }
    fclose(file);
    return found;
}

/* A GPU instance of the profile that no VF of this PF has; lowest id. -1: there is none. */
static int seat(const char *pf_dir, const char *pf, int profile, int self_index)
{
    char path[PATH_MAX];
    unsigned id, found, start, size, computes, busy;
    int mixed, best = -1;
    snprintf(path, sizeof path, "%s/gpus/%s/instances", getenv("FAKE_NVML_STATE"), pf);
    FILE *file = fopen(path, "r");
    while (file && fscanf(file, "%u %u %u %u %u %u %d", &id, &found, &start, &size, &computes, &busy,
                          &mixed) == 7) {
        int taken = 0;
        if ((int)found != profile) continue;
        for (int i = 0; i < 64 && !taken; i++) {
            if (i == self_index) continue;
            snprintf(path, sizeof path, "%s/virtfn%d/nvidia/gpu_instance_id", pf_dir, i);
            taken = number_at(path, -1) == (int)id;
        }
        if (!taken && (best < 0 || (int)id < best)) best = (int)id;
    }
    if (file) fclose(file);
    return best;
}

static int type_profile(const char *pf, int wanted, int *profile)
{
    char path[PATH_MAX], name[64];
    unsigned id, framebuffer, per_gpu, per_gi;
    int found = 0;
    snprintf(path, sizeof path, "%s/gpus/%s/types", getenv("FAKE_NVML_STATE"), pf);
    FILE *file = fopen(path, "r");
    while (file && !found && fscanf(file, "%u %u %u %u %d %63[^\n]", &id, &framebuffer, &per_gpu,
                                    &per_gi, profile, name) == 6)
        found = (int)id == wanted;
    if (file) fclose(file);
    return found;
}

static int vgpu_type(const char *path, const char *text)
{
    char vf_dir[PATH_MAX], pf_dir[PATH_MAX], gi_file[PATH_MAX + 32], line[32], *pf;
    char *end;
    int index = -1, profile = -1, gi = -1;
    long wanted = strtol(text, &end, 10);
    if (end == text) return EINVAL;
    int now = number_at(path, 0);
    if (!now == !wanted) return EPERM; /* over a set type, or clearing what is not set */
    snprintf(vf_dir, sizeof vf_dir, "%.*s", (int)(strrchr(path, '/') - path), path);
    snprintf(gi_file, sizeof gi_file, "%s/gpu_instance_id", vf_dir);
    if (wanted == 0) { unlink(gi_file); return put(path, "0"); }
    *strrchr(vf_dir, '/') = 0; /* drop nvidia/ */
    snprintf(gi_file, sizeof gi_file, "%s/physfn", vf_dir);
    if (!realpath(gi_file, pf_dir)) return ENODEV;
    pf = strrchr(pf_dir, '/') + 1;
    for (int i = 0; i < 64 && index < 0; i++) {
        char link[PATH_MAX + 32], target[PATH_MAX];
        snprintf(link, sizeof link, "%s/virtfn%d", pf_dir, i);
        if (realpath(link, target) && !strcmp(target, vf_dir)) index = i;
    }
    if (!type_profile(pf, (int)wanted, &profile)) {
        kernel_says("NVRM: Failed to add vgpu create request: 0x57");
        return EIO;
    }
    if (profile >= 0 && (gi = seat(pf_dir, pf, profile, index)) < 0) {
        kernel_says("NVRM: Failed to add vgpu create request: 0x38");
        return EIO;
    }
    if (gi >= 0) {
        snprintf(gi_file, sizeof gi_file, "%s/nvidia/gpu_instance_id", vf_dir);
        snprintf(line, sizeof line, "%d", gi);
        put(gi_file, line);
    }
    snprintf(line, sizeof line, "%ld", wanted);
    return put(path, line);
}

static int bind_or_unbind(const char *path, const char *bdf, int bind)
{
    char driver[64], device[PATH_MAX], target[PATH_MAX], visible[PATH_MAX];
    const char *end = strrchr(path, '/'), *start = end;
    while (start > path && start[-1] != '/') start--;
    snprintf(driver, sizeof driver, "%.*s", (int)(end - start), start);
    snprintf(device, sizeof device, "%s/sys/bus/pci/devices/%s/driver", root(), bdf);
    ssize_t length = readlink(device, target, sizeof target - 1);
    if (bind) {
        if (length >= 0) return EBUSY;
        snprintf(target, sizeof target, "../../drivers/%s", driver);
        if (symlink(target, device)) return ENODEV;
    } else {
        if (length < 0) return ENODEV;
        target[length] = 0;
        if (strcmp(strrchr(target, '/') + 1, driver)) return ENODEV;
        unlink(device);
    }
    snprintf(visible, sizeof visible, "%s/gpus/%s/visible", getenv("FAKE_NVML_STATE"), bdf);
    put(visible, bind && !strcmp(driver, "nvidia") ? "1" : "0");
    return 0;
}

static int mdev_create(const char *path, const char *uuid)
{
    /* <root>/sys/class/mdev_bus/<vf>/mdev_supported_types/nvidia-N/create */
    char type_dir[PATH_MAX], bus[PATH_MAX * 2], device[PATH_MAX], file[PATH_MAX * 2];
    snprintf(type_dir, sizeof type_dir, "%.*s", (int)(strrchr(path, '/') - path), path);
    snprintf(file, sizeof file, "%s/available_instances", type_dir);
    if (number_at(file, 0) < 1) return EINVAL;
    put(file, "0");
    snprintf(file, sizeof file, "%s/../..", type_dir);
    if (!realpath(file, device)) return ENODEV;
    snprintf(file, sizeof file, "%.4000s/%s", device, uuid);
    if (mkdir(file, 0755)) return EEXIST;
    snprintf(bus, sizeof bus, "%s/mdev_type", file);
    if (symlink(type_dir, bus)) return EIO;
    snprintf(bus, sizeof bus, "%s/remove", file);
    put(bus, "");
    snprintf(bus, sizeof bus, "%s/sys/bus/mdev/devices/%s", root(), uuid);
    return symlink(file, bus) ? EIO : 0;
}

static int mdev_remove(const char *path)
{
    char device[PATH_MAX], file[PATH_MAX + 64];
    snprintf(device, sizeof device, "%.*s", (int)(strrchr(path, '/') - path), path);
    snprintf(file, sizeof file, "%s/mdev_type/available_instances", device);
    put(file, "1");
    snprintf(file, sizeof file, "%s/mdev_type", device);
    unlink(file);
    unlink(path);
    snprintf(file, sizeof file, "%s/sys/bus/mdev/devices/%s", root(), strrchr(device, '/') + 1);
    unlink(file);
    return rmdir(device) ? EIO : 0;
}

ssize_t write(int fd, const void *buffer, size_t count)
{
    static ssize_t (*real)(int, const void *, size_t);
    char link[64], path[PATH_MAX], text[128];
    if (!real) real = (ssize_t(*)(int, const void *, size_t))dlsym(RTLD_NEXT, "write");
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = root() ? readlink(link, path, sizeof path - 1) : -1;
    if (length <= 0 || count >= sizeof text) return real(fd, buffer, count);
    path[length] = 0;
    if (strncmp(path, root(), strlen(root()))) return real(fd, buffer, count);
    memcpy(text, buffer, count);
    text[count] = 0;
    text[strcspn(text, "\n")] = 0;
    const char *name = strrchr(path, '/') + 1;
    int known = 1, code = planted(name);
    if (code) { errno = code; return -1; }
    if (!strcmp(name, "current_vgpu_type")) code = vgpu_type(path, text);
    else if (!strcmp(name, "bind")) code = bind_or_unbind(path, text, 1);
    else if (!strcmp(name, "unbind")) code = bind_or_unbind(path, text, 0);
    else if (!strcmp(name, "unbindLock")) code = put(path, text);
    else if (!strcmp(name, "create")) code = mdev_create(path, text);
    else if (!strcmp(name, "remove")) code = mdev_remove(path);
    else known = 0;
    if (!known) return real(fd, buffer, count);
    if (code) { errno = code; return -1; }
    return (ssize_t)count;
}
