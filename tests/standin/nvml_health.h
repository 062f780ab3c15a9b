/* What a GPU says of its memory, modes, heat and bus. Part of nvml.c. */

int nvmlDeviceGetEccMode(device gpu, unsigned *now, unsigned *next) {
    unsigned long long of[2];
    ENTER(NUMBER);
    numbers(said, "1 1", 2, of);
    *now = (unsigned)of[0];
    *next = (unsigned)of[1];
    return 0;
}
int nvmlDeviceGetDefaultEccMode(device gpu, unsigned *to) { ENTER(NUMBER); VALUE(unsigned, 1); }

/* Arguments: corrected 0 or uncorrected 1; since the driver's start 0 or in all 1; and where. */
int nvmlDeviceGetTotalEccErrors(device gpu, int kind, int span, unsigned long long *to) {
    ASK(NUMBER, "%d/%d", kind, span);
    VALUE(unsigned long long, counted(kind ? "ecc_uncorrected" : "ecc_corrected"));
}
int nvmlDeviceGetMemoryErrorCounter(device gpu, int kind, int span, int where, unsigned long long *to) {
    ASK(NUMBER, "%d/%d/%d", kind, span, where);
    if (where != 2 && where != 7 && !*said) return 3;
    VALUE(unsigned long long, kind ? counted(where == 7 ? "sram_uncorrected" : "dram_uncorrected") : 0);
}

/* Values: uncorrected parity, SEC-DED, corrected, in all; the same three since the driver's start;
 * five buckets; whether the threshold is exceeded. */
typedef struct { unsigned version; unsigned long long counts[11]; unsigned exceeded; } sram_status;
int nvmlDeviceGetSramEccErrorStatus(device gpu, sram_status *to) {
    unsigned long long of[12];
    ENTER(NUMBER);
    if (to->version != 0x1000068) return 25;
    numbers(said, "", 12, of);
    memcpy(to->counts, of, sizeof to->counts);
    to->exceeded = (unsigned)of[11];
    return 0;
}

/* Values: rows remapped for correctable errors, for uncorrectable ones, pending, failed. */
int nvmlDeviceGetRemappedRows(device gpu, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed) {
    unsigned long long of[4];
    ENTER(NUMBER);
    numbers(said, "", 4, of);
    *corrected = (unsigned)of[0];
    *uncorrected = *said ? (unsigned)of[1] : (unsigned)counted("rows_remapped");
    *pending = *said ? (unsigned)of[2] : (unsigned)counted("remap_pending");
    *failed = *said ? (unsigned)of[3] : (unsigned)counted("remap_failed");
    return 0;
}
/* Values: banks with all spare rows left, with most, with some, with few, with none. */
int nvmlDeviceGetRowRemapperHistogram(device gpu, unsigned *to) {
    unsigned long long of[5];
    ENTER(NUMBER);
    numbers(said, "640", 5, of);
    for (int n = 0; n < 5; n++) to[n] = (unsigned)of[n];
    return 0;
}
int nvmlDeviceGetRetiredPages(device gpu, int reason, unsigned *count, unsigned long long *to) {
    ASK(NUMBER, "%d", reason);
    unsigned pages = (unsigned)number(said, reason ? 0 : counted("retired_pages"));
    if (*count < pages) { *count = pages; return 7; }
    for (unsigned n = 0; n < pages; n++) to[n] = 0x10000ULL * (n + 1);
    *count = pages;
    return 0;
}
int nvmlDeviceGetRetiredPagesPendingStatus(device gpu, unsigned *to) { ENTER(NUMBER); VALUE(unsigned, 0); }

int nvmlDeviceGetPersistenceMode(device gpu, unsigned *to) { ENTER(NUMBER); VALUE(unsigned, 1); }
int nvmlDeviceGetComputeMode(device gpu, unsigned *to) { ENTER(NUMBER); VALUE(unsigned, 0); }
int nvmlDeviceGetMigMode(device gpu, unsigned *now, unsigned *next) {
    unsigned long long of[2];
    ENTER(NUMBER);
    numbers(said, getenv("STANDIN_MIG") ? "1 1" : "0 0", 2, of);
    *now = (unsigned)of[0];
    *next = (unsigned)of[1];
    return 0;
}
int nvmlDeviceGetMaxMigDeviceCount(device gpu, unsigned *to) { ENTER(NUMBER); VALUE(unsigned, 0); }
/* A slice is there if the scenario has a UUID for it. */
int nvmlDeviceGetMigDeviceHandleByIndex(device gpu, unsigned index, device *to) {
    ASK(NUMBER, "%u", index);
    if (!told("nvmlDeviceGetUUID", NUMBER, arguments, NULL)) return 6;
    *to = (device)SLICE * (index + 1) + gpu;
    return 0;
}

/* Thresholds in degrees: shutdown 0, slowdown 1, memory 2, operation 3. */
int nvmlDeviceGetTemperatureThreshold(device gpu, int which, unsigned *to) {
    static const unsigned degrees[] = {95, 92, 95, 87};
    ASK(NUMBER, "%d", which);
    if (!*said && which > 3) return 3;
    VALUE(unsigned, degrees[which]);
}
typedef struct { unsigned version; int margin; } margin;
int nvmlDeviceGetMarginTemperature(device gpu, margin *to) {
    ENTER(NUMBER);
    if (!*said) return 3;
    to->margin = atoi(said);
    return 0;
}
typedef struct { unsigned long long at_us, held_ns; } violation;
int nvmlDeviceGetViolationStatus(device gpu, int policy, violation *to) {
    ASK(NUMBER, "%d", policy);
    to->at_us = 1;
    to->held_ns = number(said, policy == 1 ? counted("thermal_violation_ns") : 0);
    return 0;
}
int nvmlDeviceGetEnforcedPowerLimit(device gpu, unsigned *to) { ENTER(NUMBER); VALUE(unsigned, 700000); }
int nvmlDeviceGetPowerManagementDefaultLimit(device gpu, unsigned *to) { ENTER(NUMBER); VALUE(unsigned, 700000); }
int nvmlDeviceGetMaxClockInfo(device gpu, int which, unsigned *to) { ASK(NUMBER, "%d", which); VALUE(unsigned, which == 2 ? 2619 : 1980); }

int nvmlDeviceGetPcieReplayCounter(device gpu, unsigned *to) { ENTER(NUMBER); VALUE(unsigned, counted("pcie_replays")); }
int nvmlDeviceGetCurrPcieLinkWidth(device gpu, unsigned *to) { ENTER(NUMBER); VALUE(unsigned, 16); }
int nvmlDeviceGetMaxPcieLinkWidth(device gpu, unsigned *to) { ENTER(NUMBER); VALUE(unsigned, 16); }
int nvmlDeviceGetCurrPcieLinkGeneration(device gpu, unsigned *to) { ENTER(NUMBER); VALUE(unsigned, 5); }
int nvmlDeviceGetMaxPcieLinkGeneration(device gpu, unsigned *to) { ENTER(NUMBER); VALUE(unsigned, 5); }
int nvmlDeviceGetGpuMaxPcieLinkGeneration(device gpu, unsigned *to) { ENTER(NUMBER); VALUE(unsigned, 5); }
