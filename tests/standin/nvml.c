/* A libnvidia-ml.so.1 without a driver behind it. Signatures: nvml.h.
 * STANDIN_NVML: UUIDs of its GPUs. STANDIN_PIDS: compute processes on each. STANDIN_MIG=1: MIG is on.
 * STANDIN_COUNTERS: a directory with a file for each counter of errors that is not zero, named like
 * the counter of nodeproof. STANDIN_SCENARIO: all of it and more, see scenario.h.
 * GPU n has the address 00000000:<0x3B+n>:00.0.
 */
#include "scenario.h"

typedef long device; /* number of the GPU plus one, so that none is NULL; a slice has its own above */
#define SLICE 1000   /* slice i of GPU g has the handle SLICE * (i + 1) + g + 1 */
#define NUMBER ((int)(gpu % SLICE - 1))
#define ASK(index, ...)                                  \
    char said[SAID], arguments[64];                      \
    int code;                                            \
    snprintf(arguments, sizeof arguments, __VA_ARGS__);  \
    if ((code = asked(__func__, (index), arguments, said))) return code
#define ENTER(index) ASK(index, "%s", "")
#define VALUE(type, otherwise) do { *to = (type)number(said, (otherwise)); return 0; } while (0)

typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; } pci_info;
typedef struct { unsigned long long total, free, used; } memory_info;
typedef struct { unsigned pid; unsigned long long used; unsigned gi, ci; } process_info;
typedef struct { unsigned gpu, memory; } utilisation;

/* What a file of the test says now: a counter may move while a run goes on. */
static unsigned long long counted(const char *name) {
    const char *folder = getenv("STANDIN_COUNTERS");
    char path[512];
    unsigned long long count = 0;
    FILE *file;
    snprintf(path, sizeof path, "%s/%s", folder ? folder : "/nowhere", name);
    if ((file = fopen(path, "r"))) {
        if (fscanf(file, "%llu", &count) != 1) count = 0;
        fclose(file);
    }
    return count;
}

const char *nvmlErrorString(int code) { (void)code; return "stand-in"; }
int nvmlInitWithFlags(unsigned flags) { (void)flags; ENTER(-1); return 0; }
int nvmlShutdown(void) { ENTER(-1); return 0; }
int nvmlSystemGetDriverVersion(char *to, unsigned size) { ENTER(-1); text(said, "570.124.06", to, size); return 0; }
int nvmlSystemGetNVMLVersion(char *to, unsigned size) { ENTER(-1); text(said, "12.570.124.06", to, size); return 0; }
int nvmlSystemGetCudaDriverVersion_v2(int *to) { ENTER(-1); VALUE(int, 12080); }
int nvmlDeviceGetCount_v2(unsigned *to) { ENTER(-1); VALUE(unsigned, uuids()); }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, device *to) { ENTER((int)index); *to = index + 1; return 0; }
int nvmlDeviceGetHandleByUUID(const char *name, device *to) {
    char known[96];
    ENTER(-1);
    for (int n = 0; uuid(n, known, sizeof known); n++)
        if (!strcmp(known, name)) {
            *to = n + 1;
            return asked("nvmlDeviceGetHandleByUUID", n, "", said);
        }
    return 6;
}
int nvmlDeviceGetUUID(device gpu, char *to, unsigned size) {
    ASK(NUMBER, gpu > SLICE ? "%ld" : "", gpu / SLICE - 1);
    if (*said) text(said, "", to, size);
    else uuid(NUMBER, to, size);
    return 0;
}
int nvmlDeviceGetName(device gpu, char *to, unsigned size) { ASK(NUMBER, gpu > SLICE ? "%ld" : "", gpu / SLICE - 1); text(said, "NVIDIA Stand-in", to, size); return 0; }
int nvmlDeviceGetSerial(device gpu, char *to, unsigned size) { char own[16]; ENTER(NUMBER); snprintf(own, sizeof own, "16540%d", NUMBER); text(said, own, to, size); return 0; }
int nvmlDeviceGetVbiosVersion(device gpu, char *to, unsigned size) { ENTER(NUMBER); text(said, "96.00.5E.00.01", to, size); return 0; }
int nvmlDeviceGetPciInfo_v3(device gpu, pci_info *to) {
    char own[32];
    ENTER(NUMBER);
    memset(to, 0, sizeof *to);
    snprintf(own, sizeof own, "00000000:%02X:00.0", 0x3B + NUMBER);
    text(said, own, to->bus_id, sizeof to->bus_id);
    return 0;
}
int nvmlDeviceGetMemoryInfo(device gpu, memory_info *to) { ENTER(NUMBER); to->total = number(said, 85899345920ULL); to->free = to->total; to->used = 0; return 0; }
int nvmlDeviceGetCudaComputeCapability(device gpu, int *major, int *minor) {
    unsigned long long of[2];
    ENTER(NUMBER);
    numbers(said, "9 0", 2, of);
    *major = (int)of[0];
    *minor = (int)of[1];
    return 0;
}
static int processes(unsigned *count, process_info *to, int wanted) {
    char pid[16];
    if (wanted == 0) { *count = 0; return 0; }
    if (!to || *count < (unsigned)wanted) { *count = wanted; return 7; }
    *count = wanted;
    for (int n = 0; n < wanted; n++) {
        word("STANDIN_PIDS", n, pid, sizeof pid);
        to[n] = (process_info){.pid = (unsigned)atoi(pid), .used = 1 << 20};
    }
    return 0;
}
int nvmlDeviceGetComputeRunningProcesses_v3(device gpu, unsigned *count, process_info *to) { ENTER(NUMBER); return processes(count, to, words("STANDIN_PIDS")); }
int nvmlDeviceGetGraphicsRunningProcesses_v3(device gpu, unsigned *count, process_info *to) { ENTER(NUMBER); return processes(count, to, 0); }
int nvmlDeviceGetMPSComputeRunningProcesses_v3(device gpu, unsigned *count, process_info *to) { ENTER(NUMBER); return processes(count, to, 0); }
int nvmlDeviceGetPowerUsage(device gpu, unsigned *to) { ENTER(NUMBER); VALUE(unsigned, 123456); }
int nvmlDeviceGetTemperature(device gpu, int sensor, unsigned *to) { (void)sensor; ENTER(NUMBER); VALUE(unsigned, 41); }
int nvmlDeviceGetClockInfo(device gpu, int which, unsigned *to) { ASK(NUMBER, "%d", which); VALUE(unsigned, which == 2 ? 2619 : 1980); }
int nvmlDeviceGetCurrentClocksEventReasons(device gpu, unsigned long long *to) { ENTER(NUMBER); VALUE(unsigned long long, 0x4); }
int nvmlDeviceGetUtilizationRates(device gpu, utilisation *to) { ENTER(NUMBER); to->gpu = (unsigned)number(said, 50); to->memory = 25; return 0; }

#include "nvml_health.h"
#include "nvml_links.h"
