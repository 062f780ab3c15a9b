/* What a stand-in library does is told by its environment:
 *   STANDIN_FAIL="call=code call@2=code"  the call returns that code (for GPU number 2 only)
 *   STANDIN_HANG="call call"              the call never returns
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int planned(const char *variable, const char *call, int index, int *code) {
    const char *plan = getenv(variable);
    char one[64], of_one[64];
    snprintf(one, sizeof one, "%s", call);
    snprintf(of_one, sizeof of_one, "%s@%d", call, index);
    while (plan && *plan) {
        size_t length = strcspn(plan, " "), name = strcspn(plan, "= ");
        if ((strlen(one) == name && !strncmp(plan, one, name)) ||
            (strlen(of_one) == name && !strncmp(plan, of_one, name))) {
            if (code) *code = atoi(plan + name + 1);
            return 1;
        }
        plan += length;
        plan += strspn(plan, " ");
    }
    return 0;
}

static int entered(const char *call, int index) {
    int code = 0;
    if (planned("STANDIN_HANG", call, index, NULL))
        for (;;) pause();
    return planned("STANDIN_FAIL", call, index, &code) ? code : 0;
}

/* Copy word `index` of a list in the environment; 0 without such a word. */
static int word(const char *variable, int index, char *into, size_t size) {
    const char *list = getenv(variable);
    for (int at = 0; list && *list; at++) {
        size_t length = strcspn(list, " ");
        if (at == index) {
            snprintf(into, size, "%.*s", (int)length, list);
            return 1;
        }
        list += length;
        list += strspn(list, " ");
    }
    return 0;
}

static int words(const char *variable) {
    char unused[64];
    int count = 0;
    while (word(variable, count, unused, sizeof unused)) count++;
    return count;
}
