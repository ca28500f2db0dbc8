/* A small libnvidia-ml.so.1 of our own, for tests through the real Python binding.
 *
 * It knows no hardware: each answer is a number or a text that the test put under (device, key). A key that is not
 * there answers NOT_SUPPORTED; any function may be told to fail, for one device or all, some times or for ever. Handles
 * are addresses of small structures; a MIG device has a number of its own. Versioned structures are checked as the
 * driver does. -DDRIVER=450 leaves out the functions that such an old driver lacks.
 */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#ifndef DRIVER
#define DRIVER 570
#endif

enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7,
       TIMEOUT = 10, VERSION_MISMATCH = 25 };
enum { DEVICES = 512, ENTRIES = 8192, FAILURES = 64, PROCESSES = 256, SAMPLES = 1024, EVENTS = 64, KEY = 64, ANY = -1 };

typedef unsigned long long u64;
typedef struct { int id; } Device;
typedef struct { int device; char key[KEY]; double number; char text[96]; } Entry;
typedef struct { char function[KEY]; int device, code, times; } Failure;
typedef struct { int device, mps; unsigned pid; u64 memory; unsigned gi, ci; } Running;
typedef struct { int device; unsigned pid; u64 stamp; unsigned sm, memory, encoder, decoder; } Used;
typedef struct { Device *device; u64 type, data; unsigned gi, ci; } Event;
typedef struct { int device, gi, number; double values[512]; } GpmSample;

static Device devices[DEVICES];
static Entry entries[ENTRIES];
static Failure failures[FAILURES];
static Running running[PROCESSES];
static Used used[SAMPLES];
static Event events[EVENTS];
static int entry_count, failure_count, running_count, used_count, event_count, starts, live_samples, live_sets;
static int registered[DEVICES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t came = PTHREAD_COND_INITIALIZER;

/* ---- what a test tells ---- */

static Entry *find(int device, const char *key) {
    for (int i = 0; i < entry_count; i++)
        if (entries[i].device == device && !strcmp(entries[i].key, key)) return &entries[i];
    return NULL;
}

static Entry *make(int device, const char *key) {
    Entry *entry = find(device, key);
    if (!entry) {
        if (entry_count == ENTRIES) abort();
        entry = &entries[entry_count++];
        memset(entry, 0, sizeof *entry);
        entry->device = device;
        snprintf(entry->key, KEY, "%s", key);
    }
    return entry;
}

void fake_number(int device, const char *key, double value) { make(device, key)->number = value; }

void fake_text(int device, const char *key, const char *value) {
    Entry *entry = make(device, key);
    snprintf(entry->text, sizeof entry->text, "%s", value);
}

void fake_remove(int device, const char *key) {
    Entry *entry = find(device, key);
    if (entry) *entry = entries[--entry_count];
}

void fake_fail(const char *function, int device, int code, int times) {
    if (failure_count == FAILURES) abort();
    Failure *failure = &failures[failure_count++];
    snprintf(failure->function, KEY, "%s", function);
    failure->device = device, failure->code = code, failure->times = times;
}

void fake_mend(void) { failure_count = 0; }

void fake_process(int device, int mps, unsigned pid, u64 memory, unsigned gi, unsigned ci) {
    running[running_count++] = (Running){device, mps, pid, memory, gi, ci};
}

void fake_no_processes(void) { running_count = used_count = 0; }

void fake_used(int device, unsigned pid, u64 stamp, unsigned sm, unsigned memory, unsigned encoder, unsigned decoder) {
    used[used_count++] = (Used){device, pid, stamp, sm, memory, encoder, decoder};
}

void fake_xid(int device, u64 code, unsigned gi, unsigned ci) {
    pthread_mutex_lock(&lock);
    events[event_count++] = (Event){&devices[device], 8, code, gi, ci};
    pthread_cond_broadcast(&came);
    pthread_mutex_unlock(&lock);
}

int fake_pending_events(void) {
    pthread_mutex_lock(&lock);
    int count = event_count;
    pthread_mutex_unlock(&lock);
    return count;
}

int fake_live_samples(void) { return live_samples; }
int fake_live_sets(void) { return live_sets; }
int fake_starts(void) { return starts; }
int fake_registered(int device) { return registered[device]; }

/* The driver was unloaded and loaded again: who was started must start anew. */
void fake_reload(void) { starts = 0; memset(registered, 0, sizeof registered); }

void fake_reset(void) {
    entry_count = failure_count = running_count = used_count = event_count = live_samples = live_sets = 0;
    fake_reload();
    for (int i = 0; i < DEVICES; i++) devices[i].id = i;
}

/* A process that no test can reach from within is told by its environment: NVML_TEST="device key value;...". */
__attribute__((constructor)) static void from_environment(void) {
    const char *said = getenv("NVML_TEST");
    char key[KEY], value[96];
    int device, used_up;
    fake_reset();
    while (said && sscanf(said, "%d %63s %95[^;]%n", &device, key, value, &used_up) == 3) {
        char *end;
        double as_number = strtod(value, &end);
        if (*end) fake_text(device, key, value);
        else fake_number(device, key, as_number);
        said += used_up;
        if (*said == ';') said++;
    }
}

/* ---- helpers ---- */

static int failing(const char *function, int device) {
    for (int i = 0; i < failure_count; i++) {
        Failure *f = &failures[i];
        if (f->times && (f->device == ANY || f->device == device)
            && (!strcmp(f->function, "*") || !strcmp(f->function, function))) {
            if (f->times > 0) f->times--;
            return f->code;
        }
    }
    return 0;
}

#define GUARD(device)                                                                                                  \
    do {                                                                                                               \
        if (!starts) return UNINITIALIZED;                                                                             \
        int code_ = failing(__func__, device);                                                                         \
        if (code_) return code_;                                                                                       \
    } while (0)

static int number(int device, const char *key, double *out) {
    Entry *entry = find(device, key);
    if (!entry) return NOT_SUPPORTED;
    *out = entry->number;
    return SUCCESS;
}

static int put_unsigned(int device, const char *key, unsigned *out) {
    double value;
    int code = number(device, key, &value);
    if (!code) *out = (unsigned)value;
    return code;
}

static int put_u64(int device, const char *key, u64 *out) {
    double value;
    int code = number(device, key, &value);
    if (!code) *out = (u64)value;
    return code;
}

static int put_text(int device, const char *key, char *out, unsigned size) {
    Entry *entry = find(device, key);
    if (!entry) return NOT_SUPPORTED;
    snprintf(out, size, "%s", entry->text);
    return SUCCESS;
}

static const char *keyed(char *buffer, const char *name, int place) {
    snprintf(buffer, KEY, "%s:%d", name, place);
    return buffer;
}

#define UNSIGNED(function, key)                                                                                        \
    int function(Device *d, unsigned *out) { GUARD(d->id); return put_unsigned(d->id, key, out); }
#define KEYED_UNSIGNED(function, key)                                                                                  \
    int function(Device *d, int which, unsigned *out) {                                                                \
        char buffer[KEY];                                                                                              \
        GUARD(d->id);                                                                                                  \
        return put_unsigned(d->id, keyed(buffer, key, which), out);                                                    \
    }

/* ---- library and system ---- */

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    int code = failing(__func__, ANY);
    if (!code) starts++;
    return code;
}

int nvmlShutdown(void) { GUARD(ANY); starts--; return SUCCESS; }

const char *nvmlErrorString(int code) { (void)code; return "an error of the test's library"; }

int nvmlSystemGetDriverVersion(char *out, unsigned size) { GUARD(ANY); return put_text(ANY, "driver", out, size); }

int nvmlSystemGetCudaDriverVersion_v2(int *out) { GUARD(ANY); return put_unsigned(ANY, "cuda", (unsigned *)out); }

int nvmlDeviceGetCount_v2(unsigned *out) { GUARD(ANY); return put_unsigned(ANY, "count", out); }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device **out) {
    GUARD((int)index);
    *out = &devices[index];
    return SUCCESS;
}

/* ---- a card ---- */

int nvmlDeviceGetUUID(Device *d, char *out, unsigned size) { GUARD(d->id); return put_text(d->id, "uuid", out, size); }
int nvmlDeviceGetName(Device *d, char *out, unsigned size) { GUARD(d->id); return put_text(d->id, "name", out, size); }

UNSIGNED(nvmlDeviceGetArchitecture, "architecture")
UNSIGNED(nvmlDeviceGetPowerUsage, "power")
UNSIGNED(nvmlDeviceGetEnforcedPowerLimit, "power_limit")
UNSIGNED(nvmlDeviceGetPcieReplayCounter, "pcie_replay")
UNSIGNED(nvmlDeviceGetCurrPcieLinkGeneration, "pcie_generation")
UNSIGNED(nvmlDeviceGetMaxPcieLinkGeneration, "pcie_generation_max")
UNSIGNED(nvmlDeviceGetCurrPcieLinkWidth, "pcie_lanes")
UNSIGNED(nvmlDeviceGetMaxPcieLinkWidth, "pcie_lanes_max")
KEYED_UNSIGNED(nvmlDeviceGetTemperature, "temperature")
KEYED_UNSIGNED(nvmlDeviceGetClockInfo, "clock")
KEYED_UNSIGNED(nvmlDeviceGetMaxClockInfo, "max_clock")
KEYED_UNSIGNED(nvmlDeviceGetPcieThroughput, "pcie_throughput")

typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; } PciInfo;
int nvmlDeviceGetPciInfo_v3(Device *d, PciInfo *out) {
    GUARD(d->id);
    memset(out, 0, sizeof *out);
    return put_text(d->id, "pci", out->bus_id, sizeof out->bus_id);
}

typedef struct { unsigned gpu, memory; } Rates;
int nvmlDeviceGetUtilizationRates(Device *d, Rates *out) {
    GUARD(d->id);
    int code = put_unsigned(d->id, "busy", &out->gpu);
    return code ? code : put_unsigned(d->id, "memory_busy", &out->memory);
}

int nvmlDeviceGetEncoderUtilization(Device *d, unsigned *out, unsigned *period) {
    GUARD(d->id);
    *period = 167000;
    return put_unsigned(d->id, "encoder", out);
}

int nvmlDeviceGetDecoderUtilization(Device *d, unsigned *out, unsigned *period) {
    GUARD(d->id);
    *period = 167000;
    return put_unsigned(d->id, "decoder", out);
}

int nvmlDeviceGetTotalEccErrors(Device *d, int kind, int counter, u64 *out) {
    char buffer[KEY];
    GUARD(d->id);
    (void)counter;
    return put_u64(d->id, keyed(buffer, "ecc", kind), out);
}

typedef struct { u64 total, free, used; } Memory;
int nvmlDeviceGetMemoryInfo(Device *d, Memory *out) {
    u64 reserved = 0;
    GUARD(d->id);
    int code = put_u64(d->id, "memory_total", &out->total);
    if (code) return code;
    put_u64(d->id, "memory_used", &out->used);
    put_u64(d->id, "memory_reserved", &reserved);
    out->used += reserved;
    out->free = out->total - out->used;
    return SUCCESS;
}

#if DRIVER >= 510
typedef struct { unsigned version; u64 total, reserved, free, used; } Memory2;
int nvmlDeviceGetMemoryInfo_v2(Device *d, Memory2 *out) {
    GUARD(d->id);
    if (out->version != (sizeof *out | 2 << 24)) return VERSION_MISMATCH;
    int code = put_u64(d->id, "memory_total", &out->total);
    if (code) return code;
    put_u64(d->id, "memory_used", &out->used);
    put_u64(d->id, "memory_reserved", &out->reserved);
    out->free = out->total - out->used - out->reserved;
    return SUCCESS;
}

int nvmlDeviceGetRemappedRows(Device *d, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed) {
    GUARD(d->id);
    int code = put_unsigned(d->id, "remapped_corrected", corrected);
    if (code) return code;
    *uncorrected = *pending = *failed = 0;
    put_unsigned(d->id, "remapped_uncorrected", uncorrected);
    put_unsigned(d->id, "remap_pending", pending);
    put_unsigned(d->id, "remap_failed", failed);
    return SUCCESS;
}

int nvmlDeviceGetCurrentClocksEventReasons(Device *d, u64 *out) {
    GUARD(d->id);
    return put_u64(d->id, "reasons", out);
}
#endif

int nvmlDeviceGetCurrentClocksThrottleReasons(Device *d, u64 *out) {
    GUARD(d->id);
    return put_u64(d->id, "reasons", out);
}

typedef union { double d; unsigned u; unsigned long ul; u64 ull; long long ll; int i; unsigned short us; } Value;
typedef struct { unsigned field, scope; long long stamp, latency; int type, code; Value value; } FieldValue;
int nvmlDeviceGetFieldValues(Device *d, int count, FieldValue *values) {
    GUARD(d->id);
    for (int i = 0; i < count; i++) {
        FieldValue *one = &values[i];
        char key[KEY];
        double value, type = 3;
        if (one->scope) snprintf(key, KEY, "field:%u:%u", one->field, one->scope);
        else snprintf(key, KEY, "field:%u", one->field);
        one->code = number(d->id, key, &value);
        if (one->code) continue;
        one->code = failing(key, d->id);
        number(d->id, keyed(key, "field_type", (int)one->field), &type);
        one->type = (int)type;
        if (one->type == 0) one->value.d = value;
        else if (one->type == 1) one->value.u = (unsigned)value;
        else if (one->type == 5) one->value.i = (int)value;
        else one->value.ull = (u64)value;
    }
    return SUCCESS;
}

/* ---- MIG ---- */

int nvmlDeviceGetMigMode(Device *d, unsigned *now, unsigned *pending) {
    GUARD(d->id);
    *pending = 0;
    int code = put_unsigned(d->id, "mig", now);
    if (!code) *pending = *now;
    return code;
}

UNSIGNED(nvmlDeviceGetMaxMigDeviceCount, "mig_places")
UNSIGNED(nvmlDeviceGetGpuInstanceId, "gi")
UNSIGNED(nvmlDeviceGetComputeInstanceId, "ci")

int nvmlDeviceGetMigDeviceHandleByIndex(Device *d, unsigned index, Device **out) {
    char buffer[KEY];
    unsigned id;
    GUARD(d->id);
    if (put_unsigned(d->id, keyed(buffer, "mig_device", (int)index), &id)) return NOT_FOUND;
    *out = &devices[id];
    return SUCCESS;
}

/* ---- processes ---- */

typedef struct { unsigned pid; u64 memory; unsigned gi, ci; } ProcessInfo;
static int list(const char *function, int device, int mps, unsigned *count, ProcessInfo *out) {
    unsigned size = *count, found = 0;
    int code = starts ? failing(function, device) : UNINITIALIZED;
    if (code) return code;
    for (int i = 0; i < running_count; i++)
        if (running[i].device == device && running[i].mps == mps) {
            if (out && found < size)
                out[found] = (ProcessInfo){running[i].pid, running[i].memory, running[i].gi, running[i].ci};
            found++;
        }
    *count = found;
    return found > size || (found && !out) ? INSUFFICIENT_SIZE : SUCCESS;
}

#if DRIVER >= 510
int nvmlDeviceGetComputeRunningProcesses_v3(Device *d, unsigned *count, ProcessInfo *out) {
    return list(__func__, d->id, 0, count, out);
}
int nvmlDeviceGetMPSComputeRunningProcesses_v3(Device *d, unsigned *count, ProcessInfo *out) {
    return list(__func__, d->id, 1, count, out);
}
#endif
int nvmlDeviceGetComputeRunningProcesses_v2(Device *d, unsigned *count, ProcessInfo *out) {
    return list(__func__, d->id, 0, count, out);
}

typedef struct { unsigned pid; u64 stamp; unsigned sm, memory, encoder, decoder; } UseSample;
int nvmlDeviceGetProcessUtilization(Device *d, UseSample *out, unsigned *count, u64 since) {
    unsigned size = *count, found = 0;
    GUARD(d->id);
    if (!find(d->id, "process_use")) return NOT_SUPPORTED;
    for (int i = 0; i < used_count; i++)
        if (used[i].device == d->id && used[i].stamp > since) {
            if (out && found < size)
                out[found] = (UseSample){used[i].pid, used[i].stamp, used[i].sm, used[i].memory, used[i].encoder,
                                         used[i].decoder};
            found++;
        }
    *count = found;
    if (!found) return find(d->id, "idle_is_success") ? SUCCESS : NOT_FOUND;
    return out ? SUCCESS : INSUFFICIENT_SIZE;
}

/* ---- GPM ---- */

#if DRIVER >= 520
typedef struct { unsigned version, supported; } GpmSupport;
int nvmlGpmQueryDeviceSupport(Device *d, GpmSupport *out) {
    GUARD(d->id);
    if (out->version != 1) return VERSION_MISMATCH;
    out->supported = find(d->id, "gpm") != NULL;
    return SUCCESS;
}

int nvmlGpmSampleAlloc(GpmSample **out) {
    GUARD(ANY);
    *out = calloc(1, sizeof **out);
    (*out)->device = -1;
    live_samples++;
    return SUCCESS;
}

int nvmlGpmSampleFree(GpmSample *sample) {
    GUARD(ANY);
    free(sample);
    live_samples--;
    return SUCCESS;
}

static int taken;

static int take(int device, int gi, int holder, GpmSample *sample) {
    char buffer[KEY];
    sample->device = device, sample->gi = gi, sample->number = ++taken;
    for (int i = 0; i < 512; i++)
        if (number(holder, keyed(buffer, "gpm", i), &sample->values[i])) sample->values[i] = -1;
    return SUCCESS;
}

int nvmlGpmSampleGet(Device *d, GpmSample *sample) {
    GUARD(d->id);
    return find(d->id, "gpm") ? take(d->id, -1, d->id, sample) : NOT_SUPPORTED;
}

int nvmlGpmMigSampleGet(Device *d, unsigned gi, GpmSample *sample) {
    char buffer[KEY];
    unsigned holder;
    GUARD(d->id);
    if (!find(d->id, "gpm")) return NOT_SUPPORTED;
    if (put_unsigned(d->id, keyed(buffer, "gpm_of_gi", (int)gi), &holder)) return INVALID_ARGUMENT;
    return take(d->id, (int)gi, (int)holder, sample);
}

typedef struct { unsigned metric; int code; double value; const char *names[3]; } GpmMetric;
typedef struct { unsigned version, count; GpmSample *first, *second; GpmMetric metrics[]; } GpmQuery;
int nvmlGpmMetricsGet(GpmQuery *query) {
    GUARD(query->second->device);
    if (query->version != 1) return VERSION_MISMATCH;
    GpmSample *a = query->first, *b = query->second;
    if (a->device != b->device || a->gi != b->gi || a->number >= b->number) return INVALID_ARGUMENT;
    for (unsigned i = 0; i < query->count; i++) {
        GpmMetric *one = &query->metrics[i];
        one->value = b->values[one->metric];
        one->code = one->value < 0 ? NOT_SUPPORTED : SUCCESS;
    }
    return SUCCESS;
}
#endif

/* ---- events ---- */

int nvmlEventSetCreate(void **out) {
    GUARD(ANY);
    *out = &came;
    live_sets++;
    return SUCCESS;
}

int nvmlEventSetFree(void *set) {
    (void)set;
    GUARD(ANY);
    live_sets--;
    return SUCCESS;
}

int nvmlDeviceRegisterEvents(Device *d, u64 types, void *set) {
    (void)set;
    GUARD(d->id);
    registered[d->id] = types == 8;
    return SUCCESS;
}

int nvmlEventSetWait_v2(void *set, Event *out, unsigned milliseconds) {
    struct timespec end;
    (void)set;
    GUARD(ANY);
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += milliseconds / 1000;
    end.tv_nsec += (long)(milliseconds % 1000) * 1000000;
    if (end.tv_nsec >= 1000000000) end.tv_sec++, end.tv_nsec -= 1000000000;
    pthread_mutex_lock(&lock);
    while (!event_count)
        if (pthread_cond_timedwait(&came, &lock, &end)) break;
    int got = event_count > 0;
    if (got) {
        *out = events[0];
        memmove(events, events + 1, sizeof *events * (size_t)--event_count);
    }
    pthread_mutex_unlock(&lock);
    return got ? SUCCESS : TIMEOUT;
}
