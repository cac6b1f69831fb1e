/*
 * A libnvidia-ml.so.1 for tests, compiled against NVIDIA's own nvml.h so that the compiler holds
 * every signature and structure to it. Behaviour as documented in that header.
 *
 * State is a directory (environment FAKE_NVML_STATE):
 *
 *   errors            lines "function code [bdf|* [times]]": that function returns the code, for
 *                     that GPU, that often
 *   hangs             lines "function [bdf]": that function never returns
 *   calls             appended: one line for each call that changes something
 *   gpus/<bdf>/       one directory a GPU, <bdf> as in sysfs; plain files with one value each:
 *       visible       1 when the driver has the card
 *       node          opened by every session and closed by nvmlShutdown, as /dev/nvidiaN is
 *       name uuid serial mig mig_current mig_pending persistence virtualization host_vgpu_mode
 *       mixed_size resetless recovery held
 *       profiles      enum id slices count memory_mib name start:size,start:size...
 *       types         id framebuffer_mib max_per_gpu max_per_gi gi_profile name with blanks
 *       instances     gi_id profile start size computes busy mixed_size
 *       active        vgpu_instance vgpu_type vm_id
 *       compute graphics mps    one pid a line
 *
 * -1 in a value file means that the part does not have it: NVML_ERROR_NOT_SUPPORTED. In `resetless`
 * and `recovery`, which are fields with a return code each, -N (2 and more) is error N.
 * One of `computes` is a compute instance over the whole GPU instance, more are of one slice each.
 *
 * Measured on an H200 (580.159.04): NVML_INIT_FLAG_NO_ATTACH finds no GPU; GPU instance profiles
 * from number 17 on are an invalid argument (another number: file `known_profiles`).
 */
#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <nvml.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_GPUS 16
#define MAX_ROWS 64
#define MAX_SESSIONS 64
#define KNOWN_PROFILES 17
#define EXPORT __attribute__((visibility("default")))

struct nvmlDevice_st {
    char bdf[32];
    int fd;
};
struct gi_row { unsigned id, profile, start, size, computes, busy; int mixed; };
struct nvmlGpuInstance_handle { struct nvmlDevice_st *gpu; unsigned id; };

/* Each session has handles of its own, so that those of an ended one are known as dead. */
static struct nvmlDevice_st handles[MAX_SESSIONS][MAX_GPUS], *gpus = handles[0];
static struct nvmlGpuInstance_handle instances[MAX_GPUS * 16];
static struct nvmlGpuInstance_handle computes[MAX_ROWS];
static int gpu_count, instance_count, session, sessions;

/* ------------------------------------------------------------------ files */

static const char *state(void) { return getenv("FAKE_NVML_STATE"); }

static void path_of(char *path, const char *bdf, const char *name)
{
    if (bdf)
        snprintf(path, PATH_MAX, "%s/gpus/%s/%s", state(), bdf, name);
    else
        snprintf(path, PATH_MAX, "%s/%s", state(), name);
}

static FILE *open_at(const char *bdf, const char *name, const char *mode)
{
    char path[PATH_MAX];
    path_of(path, bdf, name);
    return fopen(path, mode);
}

/* Files are replaced whole: the process of another GPU may be reading them. */
static FILE *start_replacing(void)
{
    char path[PATH_MAX], name[32];
    snprintf(name, sizeof name, "new.%d", getpid());
    path_of(path, NULL, name);
    return fopen(path, "w");
}

static void replace(FILE *file, const char *bdf, const char *name)
{
    char from[PATH_MAX], to[PATH_MAX], own[32];
    fclose(file);
    snprintf(own, sizeof own, "new.%d", getpid());
    path_of(from, NULL, own);
    path_of(to, bdf, name);
    if (rename(from, to)) abort();
}

static int value(const char *bdf, const char *name, int missing)
{
    int number = missing;
    FILE *file = open_at(bdf, name, "r");
    if (file) {
        if (fscanf(file, "%d", &number) != 1) number = missing;
        fclose(file);
    }
    return number;
}

static void store(const char *bdf, const char *name, int number)
{
    FILE *file = start_replacing();
    if (file) { fprintf(file, "%d\n", number); replace(file, bdf, name); }
}

static nvmlReturn_t text(const char *bdf, const char *name, char *buffer, unsigned size)
{
    char line[256] = "";
    FILE *file = open_at(bdf, name, "r");
    if (!file) return NVML_ERROR_NOT_SUPPORTED;
    if (!fgets(line, sizeof line, file)) line[0] = 0;
    fclose(file);
    line[strcspn(line, "\n")] = 0;
    if (!strcmp(line, "-1")) return NVML_ERROR_NOT_SUPPORTED;
    if (strlen(line) + 1 > size) return NVML_ERROR_INSUFFICIENT_SIZE;
    strcpy(buffer, line);
    return NVML_SUCCESS;
}

static void record(const char *what, const char *bdf, const char *more)
{
    FILE *file = open_at(NULL, "calls", "a");
    if (file) { fprintf(file, "%s %s %s\n", what, bdf, more); fclose(file); }
}

/* What the test planted for this function: an error, or a call that does not come back. */
static nvmlReturn_t planted(const char *function, const char *bdf)
{
    char lines[MAX_ROWS][256], name[128], whose[64];
    int count = 0, changed = 0, code, times;
    nvmlReturn_t found = NVML_SUCCESS;
    FILE *file = open_at(NULL, "hangs", "r");
    while (file && fgets(lines[0], sizeof lines[0], file)) {
        strcpy(whose, "*");
        if (sscanf(lines[0], "%127s %63s", name, whose) >= 1 && !strcmp(name, function) &&
            (!strcmp(whose, "*") || !strcmp(whose, bdf)))
            for (;;) pause();
    }
    if (file) fclose(file);
    file = open_at(NULL, "errors", "r");
    while (file && count < MAX_ROWS && fgets(lines[count], sizeof lines[0], file)) {
        strcpy(whose, "*");
        times = -1;
        int words = sscanf(lines[count], "%127s %d %63s %d", name, &code, whose, &times);
        if (words >= 2 && times && !strcmp(name, function) &&
            (!strcmp(whose, "*") || !strcmp(whose, bdf))) {
            found = (nvmlReturn_t)code;
            if (times > 0) {
                snprintf(lines[count], sizeof lines[0], "%s %d %s %d\n", name, code, whose, times - 1);
                changed = 1;
            }
        }
        count++;
    }
    if (file) fclose(file);
    if (changed && (file = start_replacing())) {
        for (int i = 0; i < count; i++) fputs(lines[i], file);
        replace(file, NULL, "errors");
    }
    return found;
}

#define RETURN_PLANTED(bdf)                                                                        \
    do {                                                                                           \
        nvmlReturn_t planted_ = planted(__func__, bdf);                                            \
        if (planted_ != NVML_SUCCESS) return planted_;                                             \
    } while (0)

/* A call without a GPU. */
#define BEGIN                                                                                      \
    do {                                                                                           \
        if (!session) return NVML_ERROR_UNINITIALIZED;                                             \
        RETURN_PLANTED("-");                                                                       \
    } while (0)

#define BEGIN_ON(device)                                                                           \
    do {                                                                                           \
        if (!session) return NVML_ERROR_UNINITIALIZED;                                             \
        if ((device) < gpus || (device) >= gpus + gpu_count) return NVML_ERROR_INVALID_ARGUMENT;   \
        RETURN_PLANTED((device)->bdf);                                                             \
    } while (0)

#define BEGIN_IN(gpu_instance) BEGIN_ON(((struct nvmlGpuInstance_handle *)(gpu_instance))->gpu)

#define NUMBER(device, name, target)                                                               \
    do {                                                                                           \
        int number_ = value((device)->bdf, name, -1);                                              \
        if (number_ < 0) return NVML_ERROR_NOT_SUPPORTED;                                          \
        *(target) = number_;                                                                       \
    } while (0)

/* ------------------------------------------------------------------ session */

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct nvmlDevice_st *)a)->bdf, ((const struct nvmlDevice_st *)b)->bdf);
}

EXPORT nvmlReturn_t nvmlInitWithFlags(unsigned int flags)
{
    char path[PATH_MAX];
    struct dirent *entry;
    nvmlReturn_t code = planted("nvmlInit", "-");
    if (code != NVML_SUCCESS) return code;
    snprintf(path, sizeof path, "%s/gpus", state());
    DIR *dir = opendir(path);
    if (!dir) return NVML_ERROR_DRIVER_NOT_LOADED;
    gpu_count = instance_count = 0;
    gpus = handles[sessions++ % MAX_SESSIONS];
    if (flags & NVML_INIT_FLAG_NO_ATTACH) {
        closedir(dir);
        session = 1;
        return NVML_SUCCESS;
    }
    while ((entry = readdir(dir)) && gpu_count < MAX_GPUS) {
        if (entry->d_name[0] == '.' || value(entry->d_name, "visible", 1) != 1) continue;
        struct nvmlDevice_st *gpu = &gpus[gpu_count++];
        snprintf(gpu->bdf, sizeof gpu->bdf, "%.31s", entry->d_name);
    }
    closedir(dir);
    qsort(gpus, gpu_count, sizeof gpus[0], by_name);
    for (int i = 0; i < gpu_count; i++) { /* a session attaches every GPU */
        snprintf(path, sizeof path, "%s/gpus/%s/node", state(), gpus[i].bdf);
        gpus[i].fd = open(path, O_RDONLY | O_CLOEXEC);
    }
    session = 1;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlInit_v2(void) { return nvmlInitWithFlags(0); }

EXPORT nvmlReturn_t nvmlShutdown(void)
{
    if (!session) return NVML_ERROR_UNINITIALIZED;
    for (int i = 0; i < gpu_count; i++)
        if (gpus[i].fd >= 0) close(gpus[i].fd);
    session = 0;
    return NVML_SUCCESS;
}

EXPORT const char *nvmlErrorString(nvmlReturn_t result)
{
    switch (result) {
    case NVML_ERROR_NOT_SUPPORTED: return "Not Supported";
    case NVML_ERROR_NOT_FOUND: return "Not Found";
    case NVML_ERROR_IN_USE: return "In use by another client";
    case NVML_ERROR_GPU_IS_LOST: return "GPU is lost";
    case NVML_ERROR_LIB_RM_VERSION_MISMATCH: return "Driver/library version mismatch";
    case NVML_ERROR_INSUFFICIENT_RESOURCES: return "Insufficient Resources";
    case NVML_ERROR_UNKNOWN: return "Unknown Error";
    default: return "Error";
    }
}

EXPORT nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length)
{
    BEGIN;
    snprintf(version, length, "580.159.04");
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *pciBusId, nvmlDevice_t *device)
{
    char wanted[32];
    unsigned domain, bus, dev, function;
    if (!session) return NVML_ERROR_UNINITIALIZED;
    if (sscanf(pciBusId, "%8x:%2x:%2x.%1x", &domain, &bus, &dev, &function) != 4)
        return NVML_ERROR_INVALID_ARGUMENT;
    snprintf(wanted, sizeof wanted, "%04x:%02x:%02x.%x", domain, bus, dev, function);
    RETURN_PLANTED(wanted);
    for (int i = 0; i < gpu_count; i++)
        if (!strcmp(gpus[i].bdf, wanted)) { *device = &gpus[i]; return NVML_SUCCESS; }
    return NVML_ERROR_NOT_FOUND;
}

/* ------------------------------------------------------------------ reads */

EXPORT nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int *index)
{
    BEGIN_ON(device);
    *index = (unsigned)(device - gpus);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length)
{
    BEGIN_ON(device);
    return text(device->bdf, "uuid", uuid, length);
}

EXPORT nvmlReturn_t nvmlDeviceGetSerial(nvmlDevice_t device, char *serial, unsigned int length)
{
    BEGIN_ON(device);
    return text(device->bdf, "serial", serial, length);
}

EXPORT nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int length)
{
    BEGIN_ON(device);
    return text(device->bdf, "name", name, length);
}

EXPORT nvmlReturn_t nvmlDeviceGetPersistenceMode(nvmlDevice_t device, nvmlEnableState_t *mode)
{
    BEGIN_ON(device);
    NUMBER(device, "persistence", mode);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *currentMode,
                                         unsigned int *pendingMode)
{
    BEGIN_ON(device);
    if (value(device->bdf, "mig", 1) != 1) return NVML_ERROR_NOT_SUPPORTED;
    NUMBER(device, "mig_current", currentMode);
    NUMBER(device, "mig_pending", pendingMode);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetVirtualizationMode(nvmlDevice_t device,
                                                    nvmlGpuVirtualizationMode_t *pVirtualMode)
{
    BEGIN_ON(device);
    NUMBER(device, "virtualization", pVirtualMode);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetHostVgpuMode(nvmlDevice_t device, nvmlHostVgpuMode_t *mode)
{
    BEGIN_ON(device);
    NUMBER(device, "host_vgpu_mode", mode);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetVgpuHeterogeneousMode(nvmlDevice_t device,
                                                       nvmlVgpuHeterogeneousMode_t *mode)
{
    BEGIN_ON(device);
    if (mode->version != nvmlVgpuHeterogeneousMode_v1) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    if (value(device->bdf, "mig_current", 0) == 1) return NVML_ERROR_NOT_SUPPORTED;
    NUMBER(device, "mixed_size", &mode->mode);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int valuesCount,
                                             nvmlFieldValue_t *values)
{
    BEGIN_ON(device);
    for (int i = 0; i < valuesCount; i++) {
        int number = -1;
        if (values[i].fieldId == 184) number = value(device->bdf, "resetless", -1);
        if (values[i].fieldId == 230) number = value(device->bdf, "recovery", -1);
        values[i].nvmlReturn = number >= 0    ? NVML_SUCCESS
                               : number == -1 ? NVML_ERROR_NOT_SUPPORTED
                                              : (nvmlReturn_t)-number;
        values[i].valueType = NVML_VALUE_TYPE_UNSIGNED_INT;
        values[i].value.uiVal = number < 0 ? 0 : (unsigned)number;
    }
    return NVML_SUCCESS;
}

static nvmlReturn_t processes(nvmlDevice_t device, const char *name, unsigned int *infoCount,
                              nvmlProcessInfo_t *infos)
{
    unsigned pid, found = 0, room = infos ? *infoCount : 0;
    FILE *file = open_at(device->bdf, name, "r");
    while (file && fscanf(file, "%u", &pid) == 1) {
        if (found < room) { memset(&infos[found], 0, sizeof infos[0]); infos[found].pid = pid; }
        found++;
    }
    if (file) fclose(file);
    *infoCount = found;
    return found > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device,
                                                            unsigned int *infoCount,
                                                            nvmlProcessInfo_t *infos)
{
    BEGIN_ON(device);
    return processes(device, "compute", infoCount, infos);
}

EXPORT nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t device,
                                                             unsigned int *infoCount,
                                                             nvmlProcessInfo_t *infos)
{
    BEGIN_ON(device);
    return processes(device, "graphics", infoCount, infos);
}

EXPORT nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t device,
                                                               unsigned int *infoCount,
                                                               nvmlProcessInfo_t *infos)
{
    BEGIN_ON(device);
    return processes(device, "mps", infoCount, infos);
}

/* ------------------------------------------------------------------ GPU instances */

static int read_instances(const char *bdf, struct gi_row *rows)
{
    int count = 0;
    FILE *file = open_at(bdf, "instances", "r");
    while (file && count < MAX_ROWS &&
           fscanf(file, "%u %u %u %u %u %u %d", &rows[count].id, &rows[count].profile,
                  &rows[count].start, &rows[count].size, &rows[count].computes, &rows[count].busy,
                  &rows[count].mixed) == 7)
        count++;
    if (file) fclose(file);
    return count;
}

static void write_instances(const char *bdf, const struct gi_row *rows, int count)
{
    FILE *file = start_replacing();
    for (int i = 0; file && i < count; i++)
        fprintf(file, "%u %u %u %u %u %u %d\n", rows[i].id, rows[i].profile, rows[i].start,
                rows[i].size, rows[i].computes, rows[i].busy, rows[i].mixed);
    if (file) replace(file, bdf, "instances");
}

struct profile { unsigned number, id, slices, count, memory; char name[64], places[256]; };

/* Finds a profile by NVML's enum (by_id 0) or by its id (by_id 1). */
static int find_profile(const char *bdf, int by_id, unsigned wanted, struct profile *profile)
{
    int found = 0;
    FILE *file = open_at(bdf, "profiles", "r");
    while (file && !found &&
           fscanf(file, "%u %u %u %u %u %63s %255s", &profile->number, &profile->id,
                  &profile->slices, &profile->count, &profile->memory, profile->name,
                  profile->places) == 7)
        found = (by_id ? profile->id : profile->number) == wanted;
    if (file) fclose(file);
    return found;
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoV(nvmlDevice_t device, unsigned int profile,
                                                         nvmlGpuInstanceProfileInfo_v2_t *info)
{
    struct profile found;
    BEGIN_ON(device);
    if (info->version != nvmlGpuInstanceProfileInfo_v2) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    if ((int)profile >= value(device->bdf, "known_profiles", KNOWN_PROFILES))
        return NVML_ERROR_INVALID_ARGUMENT;
    if (!find_profile(device->bdf, 0, profile, &found)) return NVML_ERROR_NOT_SUPPORTED;
    info->id = found.id;
    info->sliceCount = found.slices;
    info->instanceCount = found.count;
    info->memorySizeMB = found.memory;
    snprintf(info->name, sizeof info->name, "MIG %s", found.name);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstancePossiblePlacements_v2(
    nvmlDevice_t device, unsigned int profileId, nvmlGpuInstancePlacement_t *placements,
    unsigned int *count)
{
    struct profile found;
    unsigned start, size, number = 0;
    int used;
    BEGIN_ON(device);
    if (!find_profile(device->bdf, 1, profileId, &found)) return NVML_ERROR_NOT_SUPPORTED;
    for (char *at = found.places; sscanf(at, "%u:%u%n", &start, &size, &used) == 2; at += used) {
        if (placements && number < *count) {
            placements[number].start = start;
            placements[number].size = size;
        }
        number++;
        if (at[used] == ',') used++;
    }
    *count = number;
    return NVML_SUCCESS;
}

static nvmlGpuInstance_t instance_handle(nvmlDevice_t device, unsigned id)
{
    for (int i = 0; i < instance_count; i++)
        if (instances[i].gpu == device && instances[i].id == id)
            return (nvmlGpuInstance_t)&instances[i];
    instances[instance_count].gpu = device;
    instances[instance_count].id = id;
    return (nvmlGpuInstance_t)&instances[instance_count++];
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstances(nvmlDevice_t device, unsigned int profileId,
                                              nvmlGpuInstance_t *gpuInstances, unsigned int *count)
{
    struct gi_row rows[MAX_ROWS];
    BEGIN_ON(device);
    if (value(device->bdf, "mig_current", 0) != 1) return NVML_ERROR_NOT_SUPPORTED;
    int number = read_instances(device->bdf, rows);
    *count = 0;
    for (int i = 0; i < number; i++)
        if (rows[i].profile == profileId)
            gpuInstances[(*count)++] = instance_handle(device, rows[i].id);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceById(nvmlDevice_t device, unsigned int id,
                                                 nvmlGpuInstance_t *gpuInstance)
{
    struct gi_row rows[MAX_ROWS];
    BEGIN_ON(device);
    int number = read_instances(device->bdf, rows);
    for (int i = 0; i < number; i++)
        if (rows[i].id == id) { *gpuInstance = instance_handle(device, id); return NVML_SUCCESS; }
    return NVML_ERROR_NOT_FOUND;
}

static struct gi_row *row_of(nvmlGpuInstance_t handle, struct gi_row *rows, int *number)
{
    struct nvmlGpuInstance_handle *gi = (struct nvmlGpuInstance_handle *)handle;
    *number = read_instances(gi->gpu->bdf, rows);
    for (int i = 0; i < *number; i++)
        if (rows[i].id == gi->id) return &rows[i];
    return NULL;
}

EXPORT nvmlReturn_t nvmlGpuInstanceGetInfo(nvmlGpuInstance_t gpuInstance,
                                           nvmlGpuInstanceInfo_t *info)
{
    struct gi_row rows[MAX_ROWS], *row;
    int number;
    BEGIN_IN(gpuInstance);
    row = row_of(gpuInstance, rows, &number);
    if (!row) return NVML_ERROR_INVALID_ARGUMENT;
    info->device = ((struct nvmlGpuInstance_handle *)gpuInstance)->gpu;
    info->id = row->id;
    info->profileId = row->profile;
    info->placement.start = row->start;
    info->placement.size = row->size;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceCreateGpuInstanceWithPlacement(
    nvmlDevice_t device, unsigned int profileId, const nvmlGpuInstancePlacement_t *placement,
    nvmlGpuInstance_t *gpuInstance)
{
    struct gi_row rows[MAX_ROWS];
    struct profile profile;
    unsigned start, size, same = 0, id = 7;
    int used, possible = 0;
    char more[64];
    BEGIN_ON(device);
    if (value(device->bdf, "mig_current", 0) != 1) return NVML_ERROR_NOT_SUPPORTED;
    if (!find_profile(device->bdf, 1, profileId, &profile)) return NVML_ERROR_INVALID_ARGUMENT;
    for (char *at = profile.places; sscanf(at, "%u:%u%n", &start, &size, &used) == 2; at += used) {
        if (start == placement->start && size == placement->size) possible = 1;
        if (at[used] == ',') used++;
    }
    if (!possible) return NVML_ERROR_INVALID_ARGUMENT;
    int number = read_instances(device->bdf, rows);
    for (int i = 0; i < number; i++) {
        if (rows[i].start < placement->start + placement->size &&
            placement->start < rows[i].start + rows[i].size)
            return NVML_ERROR_INSUFFICIENT_RESOURCES;
        if (rows[i].profile == profileId) same++;
        if (rows[i].id >= id) id = rows[i].id + 1;
    }
    if (same >= profile.count) return NVML_ERROR_INSUFFICIENT_RESOURCES;
    rows[number] = (struct gi_row){id, profileId, placement->start, placement->size, 0, 0, 0};
    write_instances(device->bdf, rows, number + 1);
    snprintf(more, sizeof more, "%u %u:%u", profileId, placement->start, placement->size);
    record("create_gpu_instance", device->bdf, more);
    *gpuInstance = instance_handle(device, id);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlGpuInstanceDestroy(nvmlGpuInstance_t gpuInstance)
{
    struct gi_row rows[MAX_ROWS], *row;
    struct nvmlGpuInstance_handle *gi = (struct nvmlGpuInstance_handle *)gpuInstance;
    char more[32];
    int number;
    BEGIN_IN(gpuInstance);
    row = row_of(gpuInstance, rows, &number);
    if (!row) return NVML_ERROR_INVALID_ARGUMENT;
    if (row->busy || row->computes) return NVML_ERROR_IN_USE;
    *row = rows[number - 1];
    write_instances(gi->gpu->bdf, rows, number - 1);
    snprintf(more, sizeof more, "%u", gi->id);
    record("destroy_gpu_instance", gi->gpu->bdf, more);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlGpuInstanceGetVgpuHeterogeneousMode(nvmlGpuInstance_t gpuInstance,
                                                            nvmlVgpuHeterogeneousMode_t *mode)
{
    struct gi_row rows[MAX_ROWS], *row;
    int number;
    BEGIN_IN(gpuInstance);
    if (mode->version != nvmlVgpuHeterogeneousMode_v1) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    row = row_of(gpuInstance, rows, &number);
    if (!row || row->mixed < 0) return NVML_ERROR_NOT_SUPPORTED;
    mode->mode = (unsigned)row->mixed;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlGpuInstanceSetVgpuHeterogeneousMode(
    nvmlGpuInstance_t gpuInstance, const nvmlVgpuHeterogeneousMode_t *mode)
{
    struct gi_row rows[MAX_ROWS], *row;
    struct nvmlGpuInstance_handle *gi = (struct nvmlGpuInstance_handle *)gpuInstance;
    int number;
    BEGIN_IN(gpuInstance);
    if (mode->version != nvmlVgpuHeterogeneousMode_v1) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    row = row_of(gpuInstance, rows, &number);
    if (!row || row->mixed < 0) return NVML_ERROR_NOT_SUPPORTED;
    row->mixed = (int)mode->mode;
    write_instances(gi->gpu->bdf, rows, number);
    record("set_mixed_size", gi->gpu->bdf, "instance");
    return NVML_SUCCESS;
}

/* ------------------------------------------------------------------ compute instances */

EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfoV(
    nvmlGpuInstance_t gpuInstance, unsigned int profile, unsigned int engProfile,
    nvmlComputeInstanceProfileInfo_v2_t *info)
{
    struct gi_row rows[MAX_ROWS], *row;
    struct profile found;
    int number;
    static const unsigned slices[] = {1, 2, 3, 4, 7, 8, 6, 1, 7};
    BEGIN_IN(gpuInstance);
    if (info->version != nvmlComputeInstanceProfileInfo_v2)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    if (profile >= NVML_COMPUTE_INSTANCE_PROFILE_COUNT || engProfile != 0)
        return NVML_ERROR_INVALID_ARGUMENT;
    row = row_of(gpuInstance, rows, &number);
    if (!row) return NVML_ERROR_INVALID_ARGUMENT;
    if (!find_profile(((struct nvmlGpuInstance_handle *)gpuInstance)->gpu->bdf, 1, row->profile,
                      &found) || slices[profile] > found.slices || profile > 4)
        return NVML_ERROR_NOT_SUPPORTED;
    info->id = profile;
    info->sliceCount = slices[profile];
    info->instanceCount = found.slices / slices[profile];
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstances(nvmlGpuInstance_t gpuInstance,
                                                       unsigned int profileId,
                                                       nvmlComputeInstance_t *computeInstances,
                                                       unsigned int *count)
{
    struct gi_row rows[MAX_ROWS], *row;
    struct profile found;
    struct nvmlGpuInstance_handle *gi = (struct nvmlGpuInstance_handle *)gpuInstance;
    static const unsigned slices[] = {1, 2, 3, 4, 7};
    int number;
    BEGIN_IN(gpuInstance);
    row = row_of(gpuInstance, rows, &number);
    if (!row) return NVML_ERROR_INVALID_ARGUMENT;
    *count = 0;
    if (profileId > 4 || !find_profile(gi->gpu->bdf, 1, row->profile, &found))
        return NVML_ERROR_INVALID_ARGUMENT;
    computes[0] = *gi;
    if (slices[profileId] == (row->computes > 1 ? 1 : found.slices))
        while (*count < row->computes)
            computeInstances[(*count)++] = (nvmlComputeInstance_t)&computes[0];
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlGpuInstanceCreateComputeInstance(nvmlGpuInstance_t gpuInstance,
                                                         unsigned int profileId,
                                                         nvmlComputeInstance_t *computeInstance)
{
    struct gi_row rows[MAX_ROWS], *row;
    struct nvmlGpuInstance_handle *gi = (struct nvmlGpuInstance_handle *)gpuInstance;
    char more[32];
    int number;
    BEGIN_IN(gpuInstance);
    row = row_of(gpuInstance, rows, &number);
    if (!row) return NVML_ERROR_INVALID_ARGUMENT;
    if (row->computes) return NVML_ERROR_INSUFFICIENT_RESOURCES;
    row->computes = 1;
    write_instances(gi->gpu->bdf, rows, number);
    snprintf(more, sizeof more, "%u profile %u", gi->id, profileId);
    record("create_compute_instance", gi->gpu->bdf, more);
    computes[0] = *gi;
    *computeInstance = (nvmlComputeInstance_t)&computes[0];
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlComputeInstanceDestroy(nvmlComputeInstance_t computeInstance)
{
    struct nvmlGpuInstance_handle *gi = (struct nvmlGpuInstance_handle *)computeInstance;
    struct gi_row rows[MAX_ROWS], *row;
    int number;
    BEGIN_IN(computeInstance);
    row = row_of((nvmlGpuInstance_t)gi, rows, &number);
    if (!row || !row->computes) return NVML_ERROR_NOT_FOUND;
    if (row->busy) return NVML_ERROR_IN_USE;
    row->computes--;
    write_instances(gi->gpu->bdf, rows, number);
    record("destroy_compute_instance", gi->gpu->bdf, "");
    return NVML_SUCCESS;
}

/* ------------------------------------------------------------------ vGPU types */

struct type { unsigned id, framebuffer, per_gpu, per_gi; int profile; char name[64]; };

static int next_type(FILE *file, struct type *type)
{
    if (!file) return 0;
    return fscanf(file, "%u %u %u %u %d %63[^\n]", &type->id, &type->framebuffer, &type->per_gpu,
                  &type->per_gi, &type->profile, type->name) == 6;
}

static int find_type(unsigned id, struct type *type)
{
    for (int i = 0; i < gpu_count; i++) {
        FILE *file = open_at(gpus[i].bdf, "types", "r");
        while (next_type(file, type))
            if (type->id == id) { fclose(file); return 1; }
        if (file) fclose(file);
    }
    return 0;
}

EXPORT nvmlReturn_t nvmlDeviceGetSupportedVgpus(nvmlDevice_t device, unsigned int *vgpuCount,
                                                nvmlVgpuTypeId_t *vgpuTypeIds)
{
    struct type type;
    unsigned found = 0, room = vgpuTypeIds ? *vgpuCount : 0;
    BEGIN_ON(device);
    FILE *file = open_at(device->bdf, "types", "r");
    if (!file) return NVML_ERROR_NOT_SUPPORTED;
    while (next_type(file, &type)) {
        if (found < room) vgpuTypeIds[found] = type.id;
        found++;
    }
    fclose(file);
    *vgpuCount = found;
    return found > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlVgpuTypeGetName(nvmlVgpuTypeId_t vgpuTypeId, char *name, unsigned int *size)
{
    struct type type;
    BEGIN;
    if (!find_type(vgpuTypeId, &type)) return NVML_ERROR_INVALID_ARGUMENT;
    if (strlen(type.name) + 1 > *size) return NVML_ERROR_INSUFFICIENT_SIZE;
    strcpy(name, type.name);
    *size = (unsigned)strlen(type.name) + 1;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlVgpuTypeGetFramebufferSize(nvmlVgpuTypeId_t vgpuTypeId,
                                                   unsigned long long *fbSize)
{
    struct type type;
    BEGIN;
    if (!find_type(vgpuTypeId, &type)) return NVML_ERROR_INVALID_ARGUMENT;
    *fbSize = (unsigned long long)type.framebuffer << 20;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlVgpuTypeGetMaxInstances(nvmlDevice_t device, nvmlVgpuTypeId_t vgpuTypeId,
                                                unsigned int *vgpuInstanceCount)
{
    struct type type;
    BEGIN_ON(device);
    if (!find_type(vgpuTypeId, &type)) return NVML_ERROR_INVALID_ARGUMENT;
    *vgpuInstanceCount = type.per_gpu;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlVgpuTypeGetMaxInstancesPerGpuInstance(nvmlVgpuTypeMaxInstance_t *max)
{
    struct type type;
    BEGIN;
    if (max->version != nvmlVgpuTypeMaxInstance_v1) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    if (!find_type(max->vgpuTypeId, &type)) return NVML_ERROR_INVALID_ARGUMENT;
    if (type.profile < 0) return NVML_ERROR_NOT_SUPPORTED;
    max->maxInstancePerGI = type.per_gi;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlVgpuTypeGetGpuInstanceProfileId(nvmlVgpuTypeId_t vgpuTypeId,
                                                        unsigned int *gpuInstanceProfileId)
{
    struct type type;
    BEGIN;
    if (!find_type(vgpuTypeId, &type)) return NVML_ERROR_INVALID_ARGUMENT;
    *gpuInstanceProfileId = (unsigned)type.profile; /* -1 is NVML's 0xFFFFFFFF */
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetActiveVgpus(nvmlDevice_t device, unsigned int *vgpuCount,
                                             nvmlVgpuInstance_t *vgpuInstances)
{
    unsigned vgpu, type, found = 0, room = vgpuInstances ? *vgpuCount : 0;
    char vm[80];
    BEGIN_ON(device);
    if (value(device->bdf, "virtualization", 0) != 3) return NVML_ERROR_NOT_SUPPORTED;
    FILE *file = open_at(device->bdf, "active", "r");
    while (file && fscanf(file, "%u %u %79s", &vgpu, &type, vm) == 3) {
        if (found < room) vgpuInstances[found] = vgpu;
        found++;
    }
    if (file) fclose(file);
    *vgpuCount = found;
    return found > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

static int find_active(unsigned wanted, unsigned *type, char *vm)
{
    unsigned vgpu;
    for (int i = 0; i < gpu_count; i++) {
        FILE *file = open_at(gpus[i].bdf, "active", "r");
        while (file && fscanf(file, "%u %u %79s", &vgpu, type, vm) == 3)
            if (vgpu == wanted) { fclose(file); return 1; }
        if (file) fclose(file);
    }
    return 0;
}

EXPORT nvmlReturn_t nvmlVgpuInstanceGetVmID(nvmlVgpuInstance_t vgpuInstance, char *vmId,
                                            unsigned int size, nvmlVgpuVmIdType_t *vmIdType)
{
    unsigned type;
    char vm[80];
    BEGIN;
    if (!find_active(vgpuInstance, &type, vm)) return NVML_ERROR_NOT_FOUND;
    snprintf(vmId, size, "%s", vm);
    *vmIdType = NVML_VGPU_VM_ID_UUID;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlVgpuInstanceGetType(nvmlVgpuInstance_t vgpuInstance,
                                            unsigned int *vgpuTypeId)
{
    char vm[80];
    BEGIN;
    return find_active(vgpuInstance, vgpuTypeId, vm) ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}

/* ------------------------------------------------------------------ changes */

EXPORT nvmlReturn_t nvmlDeviceSetPersistenceMode(nvmlDevice_t device, nvmlEnableState_t mode)
{
    BEGIN_ON(device);
    store(device->bdf, "persistence", (int)mode);
    record("set_persistence", device->bdf, mode ? "1" : "0");
    return NVML_SUCCESS;
}

/* Whether another process has the GPU open: any NVML session has every GPU open. */
static int others_have_it_open(const char *bdf)
{
    char path[PATH_MAX], wanted[PATH_MAX], target[PATH_MAX];
    struct dirent *process, *entry;
    int found = 0;
    snprintf(wanted, sizeof wanted, "%s/gpus/%s/node", state(), bdf);
    DIR *proc = opendir("/proc");
    while (proc && !found && (process = readdir(proc))) {
        int pid = atoi(process->d_name);
        if (pid <= 0 || pid == getpid()) continue;
        snprintf(path, sizeof path, "/proc/%d/fd", pid);
        DIR *descriptors = opendir(path);
        while (descriptors && !found && (entry = readdir(descriptors))) {
            snprintf(path, sizeof path, "/proc/%d/fd/%.32s", pid, entry->d_name);
            ssize_t length = readlink(path, target, sizeof target - 1);
            if (length > 0) {
                target[length] = 0;
                found = !strcmp(target, wanted);
            }
        }
        if (descriptors) closedir(descriptors);
    }
    if (proc) closedir(proc);
    return found;
}

EXPORT nvmlReturn_t nvmlDeviceSetMigMode(nvmlDevice_t device, unsigned int mode,
                                         nvmlReturn_t *activationStatus)
{
    struct gi_row rows[MAX_ROWS];
    BEGIN_ON(device);
    if (value(device->bdf, "mig", 1) != 1) return NVML_ERROR_NOT_SUPPORTED;
    if (mode == 0 && read_instances(device->bdf, rows)) return NVML_ERROR_IN_USE;
    record("set_mig_mode", device->bdf, mode ? "1" : "0");
    store(device->bdf, "mig_pending", (int)mode);
    if (value(device->bdf, "held", 0) || others_have_it_open(device->bdf)) {
        *activationStatus = NVML_ERROR_IN_USE;
        return NVML_SUCCESS;
    }
    store(device->bdf, "mig_current", (int)mode);
    *activationStatus = NVML_SUCCESS;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceSetVgpuHeterogeneousMode(nvmlDevice_t device,
                                                       const nvmlVgpuHeterogeneousMode_t *mode)
{
    BEGIN_ON(device);
    if (mode->version != nvmlVgpuHeterogeneousMode_v1) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    if (value(device->bdf, "mig_current", 0) == 1 || value(device->bdf, "mixed_size", -1) < 0)
        return NVML_ERROR_NOT_SUPPORTED;
    FILE *active = open_at(device->bdf, "active", "r");
    int used = active && fgetc(active) != EOF;
    if (active) fclose(active);
    if (used) return NVML_ERROR_IN_USE;
    store(device->bdf, "mixed_size", (int)mode->mode);
    record("set_mixed_size", device->bdf, mode->mode ? "1" : "0");
    return NVML_SUCCESS;
}
