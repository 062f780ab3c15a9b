/* syslog(2) of a machine whose log is the file STANDIN_LOG; without one it may not be read. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

int klogctl(int action, char *to, int size) {
    const char *path = getenv("STANDIN_LOG");
    FILE *file = path ? fopen(path, "rb") : NULL;
    long length;
    if (!file) {
        errno = EPERM;
        return -1;
    }
    fseek(file, 0, SEEK_END);
    length = ftell(file);
    rewind(file);
    if (action == 3) length = (long)fread(to, 1, (size_t)size, file);
    fclose(file);
    return (int)length;
}
