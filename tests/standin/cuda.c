/* A libcuda.so.1 without a driver behind it. Signatures: cuda.h.
 * STANDIN_CUDA: UUIDs of its GPUs. With none, cuInit finds no device, as the real one does.
 * GPU n has the address 0000:<3b+n>:00.0. A process that is given a slice (CUDA_VISIBLE_DEVICES is
 * MIG-...) has that one alone, under the UUID of the slice, unless STANDIN_SEES_ALL is set.
 */
#include "plan.h"

static const char *slice(void) {
    const char *given = getenv("CUDA_VISIBLE_DEVICES");
    return given && !strncmp(given, "MIG-", 4) && !getenv("STANDIN_SEES_ALL") ? given : NULL;
}

#define ENTER(index)                                        \
    do {                                                    \
        int code = entered(__func__, (index));              \
        if (code) return code;                              \
    } while (0)

int cuInit(unsigned flags) { (void)flags; ENTER(-1); return slice() || words("STANDIN_CUDA") ? 0 : 100; }
int cuDriverGetVersion(int *to) { ENTER(-1); *to = 12080; return 0; }
int cuDeviceGetCount(int *to) { ENTER(-1); *to = slice() ? 1 : words("STANDIN_CUDA"); return 0; }
int cuDeviceGet(int *to, int ordinal) { ENTER(ordinal); *to = ordinal; return 0; }
int cuDeviceGetUuid_v2(unsigned char *to, int device) {
    char uuid[96];
    const char *at = uuid + 4; /* after "GPU-" */
    ENTER(device);
    if (slice()) snprintf(uuid, sizeof uuid, "%s", slice());
    else word("STANDIN_CUDA", device, uuid, sizeof uuid);
    for (int n = 0; n < 16; n++, at += 2) {
        unsigned byte;
        if (*at == '-') at++;
        sscanf(at, "%2x", &byte);
        to[n] = (unsigned char)byte;
    }
    return 0;
}
int cuDeviceGetName(char *to, int size, int device) { ENTER(device); snprintf(to, size, "NVIDIA Stand-in"); return 0; }
int cuDeviceGetPCIBusId(char *to, int size, int device) { ENTER(device); snprintf(to, size, "0000:%02x:00.0", 0x3b + device); return 0; }
