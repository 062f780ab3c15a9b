/* What a GPU says of its fields, NVLinks and fabric. Part of nvml.c. */

typedef struct { unsigned field, scope; long timestamp, latency; unsigned type, status; unsigned long long value; } field_value;

/* Which counter of the test a field shows; NULL: none, so that it is not supported. */
static const char *counter_of(unsigned field) {
    switch (field) {
    case 38: return "nvlink_crc";
    case 52: return "nvlink_replays";
    case 59: return "nvlink_recoveries";
    case 230: return "recovery_action";
    default: return NULL;
    }
}
/* A field without a value in the scenario has the number of its scope as the second argument. */
int nvmlDeviceGetFieldValues(device gpu, int count, field_value *to) {
    ENTER(NUMBER);
    for (int n = 0; n < count; n++) {
        char value[SAID], of[64];
        const char *counter = counter_of(to[n].field);
        int none = !counter || (getenv("STANDIN_NO_NVLINK") && to[n].field < 226);
        snprintf(of, sizeof of, "%u/%u", to[n].field, to[n].scope);
        to[n].status = (unsigned)asked(__func__, NUMBER, of, value);
        if (!to[n].status && !*value) {
            snprintf(of, sizeof of, "%u", to[n].field);
            to[n].status = (unsigned)asked(__func__, NUMBER, of, value);
        }
        if (!to[n].status && !*value && none) to[n].status = 3;
        to[n].type = 3; /* unsigned long long */
        to[n].value = to[n].status ? 0xDEADBEEF : number(value, counter ? counted(counter) : 0);
    }
    return 0;
}

/* Without a scenario there is no NVLink, and no number of a link is known. */
int nvmlDeviceGetNvLinkState(device gpu, unsigned link, unsigned *to) { ASK(NUMBER, "%u", link); if (!*said) return 3; VALUE(unsigned, 0); }
int nvmlDeviceGetNvLinkRemoteDeviceType(device gpu, unsigned link, unsigned *to) { ASK(NUMBER, "%u", link); if (!*said) return 3; VALUE(unsigned, 0); }
/* Arguments: link, and replay 0, recovery 1, CRC of flits 2, of data 3, ECC 4. */
int nvmlDeviceGetNvLinkErrorCounter(device gpu, unsigned link, int which, unsigned long long *to) { ASK(NUMBER, "%u/%d", link, which); if (!*said) return 3; VALUE(unsigned long long, 0); }

/* Without a scenario a link that is up ends at nobody who is known. */
int nvmlDeviceGetNvLinkRemotePciInfo_v2(device gpu, unsigned link, pci_info *to) {
    ASK(NUMBER, "%u", link);
    if (!*said) return 3;
    memset(to, 0, sizeof *to);
    text(said, "", to->bus_id, sizeof to->bus_id);
    return 0;
}

/* Arguments: number of the other GPU and what is asked for (read 0, write 1, NVLink 2, atomics 3,
 * PCIe 4), or that alone for every other. Without a scenario all is well but that there is no NVLink. */
int nvmlDeviceGetP2PStatus(device gpu, device other, int which, unsigned *to) {
    ASK(NUMBER, "%ld/%d", other - 1, which);
    if (!*said) {
        snprintf(arguments, sizeof arguments, "%d", which);
        if ((code = asked(__func__, NUMBER, arguments, said))) return code;
    }
    VALUE(unsigned, which == 2 ? 5 : 0);
}
/* Argument: number of the other GPU. */
int nvmlDeviceGetTopologyCommonAncestor(device gpu, device other, unsigned *to) { ASK(NUMBER, "%ld", other - 1); VALUE(unsigned, 40); }

/* Argument: the version of the query, in hexadecimal.
 * Values: state, status, clique, health mask, health summary, and one byte that fills the UUID. */
typedef struct { unsigned version; unsigned char uuid[16]; unsigned status, clique; unsigned char state; unsigned mask; unsigned char summary; } fabric_3;
int nvmlDeviceGetGpuFabricInfoV(device gpu, fabric_3 *to) {
    unsigned long long of[6];
    ASK(NUMBER, "%x", to->version);
    if (to->version != 0x3000028 && to->version != 0x2000024) return 25;
    numbers(said, "", 6, of);
    to->state = (unsigned char)of[0];
    to->status = (unsigned)of[1];
    to->clique = (unsigned)of[2];
    to->mask = (unsigned)of[3];
    memset(to->uuid, (int)of[5], sizeof to->uuid);
    if (to->version == 0x3000028) to->summary = (unsigned char)of[4];
    return 0;
}
typedef struct { unsigned char uuid[16]; unsigned status, clique; unsigned char state; } fabric_1;
int nvmlDeviceGetGpuFabricInfo(device gpu, fabric_1 *to) {
    unsigned long long of[6];
    ENTER(NUMBER);
    numbers(said, "", 6, of);
    to->state = (unsigned char)of[0];
    to->status = (unsigned)of[1];
    to->clique = (unsigned)of[2];
    memset(to->uuid, (int)of[5], sizeof to->uuid);
    return 0;
}
