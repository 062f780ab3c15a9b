/* Put before libc with LD_PRELOAD: a kernel clock in the state that the environment names.
 * STANDIN_MAXERROR: microseconds. STANDIN_UNSYNC=1: no daemon corrects it. STANDIN_CLOCK_ERRNO:
 * the call is refused.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/timex.h>

int adjtimex(struct timex *to) {
    int unsynchronised = getenv("STANDIN_UNSYNC") != NULL;
    if (getenv("STANDIN_CLOCK_ERRNO")) {
        errno = atoi(getenv("STANDIN_CLOCK_ERRNO"));
        return -1;
    }
    memset(to, 0, sizeof *to);
    to->maxerror = atol(getenv("STANDIN_MAXERROR"));
    to->esterror = 1000;
    to->offset = 2500;
    to->status = STA_NANO | (unsynchronised ? STA_UNSYNC : 0);
    return unsynchronised ? TIME_ERROR : TIME_OK;
}
