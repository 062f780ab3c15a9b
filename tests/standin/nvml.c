/* A libnvidia-ml.so.1 without a driver behind it. Signatures: nvml.h.
 * STANDIN_NVML: UUIDs of its GPUs. STANDIN_PIDS: compute processes on each. STANDIN_MIG=1: MIG is on.
 * STANDIN_COUNTERS: a directory with a file for each counter of errors that is not zero, named like the call.
 * GPU n has the address 00000000:<0x3B+n>:00.0.
 */
#include "plan.h"

typedef long device; /* number of the GPU plus one, so that none is NULL */
#define ENTER(index)                                        \
    do {                                                    \
        int code = entered(__func__, (index));              \
        if (code) return code;                              \
    } while (0)
#define NUMBER ((int)(gpu - 1))

typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; } pci_info;
typedef struct { unsigned long long total, free, used; } memory_info;
typedef struct { unsigned pid; unsigned long long used; unsigned gi, ci; } process_info;
typedef struct { unsigned gpu, memory; } utilisation;

typedef struct { unsigned field, scope; long timestamp, latency; unsigned type, status; unsigned long long value; } field_value;

/* What a file of the test says now: a counter may move while a run goes on. */
static unsigned counted(const char *name) {
    const char *folder = getenv("STANDIN_COUNTERS");
    char path[512];
    unsigned count = 0;
    FILE *file;
    snprintf(path, sizeof path, "%s/%s", folder ? folder : "/nowhere", name);
    if ((file = fopen(path, "r"))) {
        if (fscanf(file, "%u", &count) != 1) count = 0;
        fclose(file);
    }
    return count;
}

const char *nvmlErrorString(int code) { (void)code; return "stand-in"; }
int nvmlInitWithFlags(unsigned flags) { (void)flags; ENTER(-1); return 0; }
int nvmlShutdown(void) { ENTER(-1); return 0; }
int nvmlSystemGetDriverVersion(char *to, unsigned size) { ENTER(-1); snprintf(to, size, "570.124.06"); return 0; }
int nvmlSystemGetNVMLVersion(char *to, unsigned size) { ENTER(-1); snprintf(to, size, "12.570.124.06"); return 0; }
int nvmlSystemGetCudaDriverVersion_v2(int *to) { ENTER(-1); *to = 12080; return 0; }
int nvmlDeviceGetCount_v2(unsigned *to) { ENTER(-1); *to = words("STANDIN_NVML"); return 0; }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, device *to) { ENTER((int)index); *to = index + 1; return 0; }
int nvmlDeviceGetHandleByUUID(const char *uuid, device *to) {
    char known[96];
    ENTER(-1);
    for (int n = 0; word("STANDIN_NVML", n, known, sizeof known); n++)
        if (!strcmp(known, uuid)) { *to = n + 1; return 0; }
    return 6;
}
int nvmlDeviceGetUUID(device gpu, char *to, unsigned size) { ENTER(NUMBER); word("STANDIN_NVML", NUMBER, to, size); return 0; }
int nvmlDeviceGetName(device gpu, char *to, unsigned size) { ENTER(NUMBER); snprintf(to, size, "NVIDIA Stand-in"); return 0; }
int nvmlDeviceGetSerial(device gpu, char *to, unsigned size) { ENTER(NUMBER); snprintf(to, size, "16540%d", NUMBER); return 0; }
int nvmlDeviceGetVbiosVersion(device gpu, char *to, unsigned size) { ENTER(NUMBER); snprintf(to, size, "96.00.5E.00.01"); return 0; }
int nvmlDeviceGetPciInfo_v3(device gpu, pci_info *to) {
    ENTER(NUMBER);
    memset(to, 0, sizeof *to);
    snprintf(to->bus_id, sizeof to->bus_id, "00000000:%02X:00.0", 0x3B + NUMBER);
    return 0;
}
int nvmlDeviceGetMemoryInfo(device gpu, memory_info *to) { ENTER(NUMBER); to->total = 85899345920ULL; to->free = to->total; to->used = 0; return 0; }
int nvmlDeviceGetCudaComputeCapability(device gpu, int *major, int *minor) { ENTER(NUMBER); *major = 9; *minor = 0; return 0; }
int nvmlDeviceGetTotalEccErrors(device gpu, int kind, int since, unsigned long long *to) { (void)since; ENTER(NUMBER); *to = counted(kind ? "ecc_uncorrected" : "ecc_corrected"); return 0; }
int nvmlDeviceGetRemappedRows(device gpu, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed) {
    ENTER(NUMBER);
    *corrected = 0;
    *uncorrected = counted("rows_remapped");
    *pending = counted("remap_pending");
    *failed = counted("remap_failed");
    return 0;
}
int nvmlDeviceGetPcieReplayCounter(device gpu, unsigned *to) { ENTER(NUMBER); *to = counted("pcie_replays"); return 0; }
int nvmlDeviceGetFieldValues(device gpu, int count, field_value *to) {
    ENTER(NUMBER);
    for (int n = 0; n < count; n++) {
        to[n].status = getenv("STANDIN_NO_NVLINK") ? 3 : 0;
        to[n].type = 3; /* unsigned long long */
        to[n].value = counted(to[n].field == 52 ? "nvlink_replays" : "nvlink_recoveries");
    }
    return 0;
}
int nvmlDeviceGetMigMode(device gpu, unsigned *now, unsigned *next) {
    ENTER(NUMBER);
    *now = *next = getenv("STANDIN_MIG") != NULL;
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
int nvmlDeviceGetPowerUsage(device gpu, unsigned *to) { ENTER(NUMBER); *to = 123456; return 0; }
int nvmlDeviceGetTemperature(device gpu, int sensor, unsigned *to) { (void)sensor; ENTER(NUMBER); *to = 41; return 0; }
int nvmlDeviceGetClockInfo(device gpu, int which, unsigned *to) { ENTER(NUMBER); *to = which == 2 ? 2619 : 1980; return 0; }
int nvmlDeviceGetCurrentClocksEventReasons(device gpu, unsigned long long *to) { ENTER(NUMBER); *to = 0x44; return 0; }
int nvmlDeviceGetUtilizationRates(device gpu, utilisation *to) { ENTER(NUMBER); to->gpu = 50; to->memory = 25; return 0; }
