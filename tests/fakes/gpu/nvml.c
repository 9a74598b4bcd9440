/* A small libnvidia-ml.so.1: one GPU that keeps its state in a file, so that several processes see it.
 *
 * FAKE_NVML_STATE  the file; without it there is no driver
 * FAKE_NVML_FAIL   "function=code,..." : these functions answer with the code
 *
 * Each change of the GPU is one line in FAKE_NVML_STATE.log. Power follows from the clock, and energy from power
 * and time, so that tests can compute both.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>

enum { OK = 0, NOT_SUPPORTED = 3, NO_PERMISSION = 4, INVALID = 2, NOT_FOUND = 6, SMALL = 7, NO_DRIVER = 9 };
static const unsigned CLOCKS[] = {1980, 1410, 900, 300}, MEMORY[] = {2619, 1593};
static const char UUID[] = "GPU-5ca1ab1e-0000-4000-8000-0123456789ab";

typedef struct { unsigned locked, memory, graphics; double energy_j, at_s; } state;

static int refusal(const char *function) {
    const char *found = getenv("FAKE_NVML_FAIL");
    size_t length = strlen(function);
    for (; found && (found = strstr(found, function)); found += length)
        if (found[length] == '=') return atoi(found + length + 1);
    return OK;
}
#define REFUSE() do { int code = refusal(__func__); if (code) return code; } while (0)

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + 1e-9 * t.tv_nsec;
}
static unsigned clock_of(const state *s) { return s->locked ? s->locked : s->graphics; }
static double power_of(const state *s) { return 50 + 0.1 * clock_of(s); }
static double energy_of(const state *s) { return s->energy_j + power_of(s) * (now_s() - s->at_s); }

/* The state, under a lock; `keep` closes it. */
static FILE *take(state *s) {
    FILE *file = fopen(getenv("FAKE_NVML_STATE"), "r+");
    if (!file) file = fopen(getenv("FAKE_NVML_STATE"), "w+");
    flock(fileno(file), LOCK_EX);
    *s = (state){0, 2619, 1980, 0, now_s()};
    if (fscanf(file, "%u %u %u %lf %lf", &s->locked, &s->memory, &s->graphics, &s->energy_j, &s->at_s) < 5)
        *s = (state){0, 2619, 1980, 0, now_s()};
    return file;
}
static void keep(FILE *file, const state *s) {
    rewind(file);
    fprintf(file, "%u %u %u %.9f %.9f          \n", s->locked, s->memory, s->graphics, s->energy_j, s->at_s);
    fclose(file);
}
static int change(const char *what, unsigned locked, unsigned memory, unsigned graphics) {
    state s;
    FILE *file = take(&s), *log;
    char path[4096];
    s.energy_j = energy_of(&s);
    s.at_s = now_s();
    if (!strcmp(what, "lock") || !strcmp(what, "unlock")) s.locked = locked;
    else { s.memory = memory; s.graphics = graphics; }
    snprintf(path, sizeof path, "%s.log", getenv("FAKE_NVML_STATE"));
    if ((log = fopen(path, "a"))) {
        fprintf(log, "%s %u\n", what, locked ? locked : graphics);
        fclose(log);
    }
    keep(file, &s);
    return OK;
}
static state look(void) {
    state s;
    FILE *file = take(&s);
    keep(file, &s);
    return s;
}

int nvmlInitWithFlags(unsigned flags) { REFUSE(); (void)flags; return getenv("FAKE_NVML_STATE") ? OK : NO_DRIVER; }
int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int code) {
    switch (code) {
    case NOT_SUPPORTED: return "Not Supported";
    case NO_PERMISSION: return "Insufficient Permissions";
    case INVALID: return "Invalid Argument";
    case NOT_FOUND: return "Not Found";
    case NO_DRIVER: return "Driver Not Loaded";
    default: return "Unknown Error";
    }
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    REFUSE();
    *device = (void *)UUID;
    return index ? INVALID : OK;
}
int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) {
    REFUSE();
    *device = (void *)UUID;
    return strcmp(uuid, UUID) ? NOT_FOUND : OK;
}
int nvmlDeviceGetUUID(void *device, char *text, unsigned length) { (void)device; snprintf(text, length, "%s", UUID); return OK; }
int nvmlDeviceGetName(void *device, char *text, unsigned length) { (void)device; snprintf(text, length, "Fake GPU"); return OK; }
static int listed(const unsigned *values, unsigned count, unsigned *size, unsigned *out) {
    unsigned room = *size;
    *size = count;
    if (!out || room < count) return SMALL;
    memcpy(out, values, count * sizeof *values);
    return OK;
}
int nvmlDeviceGetSupportedMemoryClocks(void *device, unsigned *size, unsigned *out) {
    REFUSE(); (void)device;
    return listed(MEMORY, 2, size, out);
}
int nvmlDeviceGetSupportedGraphicsClocks(void *device, unsigned memory, unsigned *size, unsigned *out) {
    REFUSE(); (void)device;
    return memory == MEMORY[0] ? listed(CLOCKS, 4, size, out) : listed(CLOCKS + 3, 1, size, out);
}
int nvmlDeviceGetClockInfo(void *device, int kind, unsigned *mhz) {
    REFUSE(); (void)device;
    state s = look();
    *mhz = kind == 2 ? s.memory : clock_of(&s);
    return OK;
}
int nvmlDeviceGetApplicationsClock(void *device, int kind, unsigned *mhz) {
    REFUSE(); (void)device;
    state s = look();
    *mhz = kind == 2 ? s.memory : s.graphics;
    return OK;
}
int nvmlDeviceSetGpuLockedClocks(void *device, unsigned low, unsigned high) { REFUSE(); (void)device; (void)low; return change("lock", high, 0, 0); }
int nvmlDeviceResetGpuLockedClocks(void *device) { REFUSE(); (void)device; return change("unlock", 0, 0, 0); }
int nvmlDeviceSetApplicationsClocks(void *device, unsigned memory, unsigned graphics) { REFUSE(); (void)device; return change("applications", 0, memory, graphics); }
int nvmlDeviceGetPowerUsage(void *device, unsigned *mw) {
    REFUSE(); (void)device;
    state s = look();
    *mw = (unsigned)(1e3 * power_of(&s));
    return OK;
}
int nvmlDeviceGetTotalEnergyConsumption(void *device, unsigned long long *mj) {
    REFUSE(); (void)device;
    state s = look();
    *mj = (unsigned long long)(1e3 * energy_of(&s));
    return OK;
}
