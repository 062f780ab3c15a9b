/* /dev/kmsg as a file STANDIN_KMSG: one record a read, nothing behind the last one, and at a line
   "EPIPE" the refusal of a reader who was overtaken; "EIO" is any other. */
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int is_kmsg(int descriptor) {
    const char *path = getenv("STANDIN_KMSG");
    struct stat wanted, found;
    return path && !stat(path, &wanted) && !fstat(descriptor, &found) &&
           wanted.st_ino == found.st_ino && wanted.st_dev == found.st_dev;
}

ssize_t read(int descriptor, void *to, size_t size) {
    static ssize_t (*real)(int, void *, size_t);
    char *bytes = to;
    size_t length = 0;
    if (!real) real = (ssize_t (*)(int, void *, size_t))dlsym(RTLD_NEXT, "read");
    if (!is_kmsg(descriptor)) return real(descriptor, to, size);
    /* A record ends where the next line does not begin with a space. */
    while (length < size && real(descriptor, bytes + length, 1) == 1) {
        if (length && bytes[length - 1] == '\n' && bytes[length] != ' ') {
            lseek(descriptor, -1, SEEK_CUR);
            break;
        }
        length++;
    }
    if (!length) errno = EAGAIN;
    else if (!strncmp(bytes, "EPIPE\n", 6)) errno = EPIPE;
    else if (!strncmp(bytes, "EIO\n", 4)) errno = EIO;
    else return (ssize_t)length;
    return -1;
}
