/* A driver told by a file what to say, read anew at each call, so that counters can move meanwhile.
 * STANDIN_SCENARIO names the file. A line of it is
 *   call[@gpu][/argument...]=value        numbers, or a text, as the call gives them
 *   call[@gpu][/argument...]=error:CODE   the call returns that nvmlReturn_t
 *   call[@gpu][/argument...]=hang         the call never returns
 * and `gpus=UUID UUID ...` lists the GPUs. Left out, GPU and arguments are any. The last line that
 * fits is the one that counts. Other lines are comments.
 */
#include "plan.h"

#define SAID 256 /* bytes of a value, its end included */

static int fits(const char *line, size_t length, const char *call, int gpu, const char *arguments) {
    size_t name = strlen(call);
    if (length < name || strncmp(line, call, name)) return 0;
    line += name;
    length -= name;
    if (length && *line == '@') {
        char *end;
        if (strtol(line + 1, &end, 10) != gpu) return 0;
        length -= (size_t)(end - line);
        line = end;
    }
    if (length == 0) return 1;
    return *line == '/' && strlen(arguments) == length - 1 && !strncmp(line + 1, arguments, length - 1);
}

/* Copy what the scenario says to a call; 0 where it says nothing. */
static int told(const char *call, int gpu, const char *arguments, char *said) {
    const char *path = getenv("STANDIN_SCENARIO");
    FILE *file = path ? fopen(path, "r") : NULL;
    char line[1024];
    int found = 0;
    if (!file) return 0;
    while (fgets(line, sizeof line, file)) {
        char *value = strchr(line, '=');
        if (!value || !fits(line, (size_t)(value - line), call, gpu, arguments)) continue;
        value[strcspn(value, "\r\n")] = '\0';
        if (said) snprintf(said, SAID, "%s", value + 1);
        found = 1;
    }
    fclose(file);
    return found;
}

/* The return code that the environment or the scenario gives a call; in `said` its value, or "". */
static int asked(const char *call, int gpu, const char *arguments, char *said) {
    int code = entered(call, gpu);
    said[0] = '\0';
    if (code || !told(call, gpu, arguments, said)) return code;
    if (!strcmp(said, "hang"))
        for (;;) pause();
    if (!strncmp(said, "error:", 6)) return atoi(said + 6);
    return 0;
}

/* Numbers of a value, or of `otherwise` where nothing was said; a number that is not there is 0. */
static void numbers(const char *said, const char *otherwise, int count, unsigned long long *to) {
    char *at = (char *)(*said ? said : otherwise);
    for (int n = 0; n < count; n++) to[n] = strtoull(at, &at, 0);
}

static unsigned long long number(const char *said, unsigned long long otherwise) {
    return *said ? strtoull(said, NULL, 0) : otherwise;
}

static void text(const char *said, const char *otherwise, char *to, unsigned size) {
    snprintf(to, size, "%s", *said ? said : otherwise);
}

/* The GPUs: those of the scenario, or of the environment. */
static int uuid(int index, char *to, size_t size) {
    char line[1024] = "";
    const char *path = getenv("STANDIN_SCENARIO");
    FILE *file = path ? fopen(path, "r") : NULL;
    int found = 0;
    while (file && !found && fgets(line, sizeof line, file)) found = !strncmp(line, "gpus=", 5);
    if (file) fclose(file);
    if (!found) return word("STANDIN_NVML", index, to, size);
    line[strcspn(line, "\r\n")] = '\0';
    char *rest = line + 5, *one = NULL;
    for (int n = 0; n <= index; n++)
        if (!(one = strsep(&rest, " "))) return 0;
    snprintf(to, size, "%s", one);
    return 1;
}

static int uuids(void) {
    char unused[96];
    int count = 0;
    while (uuid(count, unused, sizeof unused)) count++;
    return count;
}
