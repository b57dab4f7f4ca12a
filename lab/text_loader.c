/*
 * Times the first touch of each page of the text of libraries, as the dynamic linker has mapped it.
 * Each exports `text`, of so many bytes. Prints one line for each: its path, the median of the
 * rounds in nanoseconds a page, and the share of these bytes that was mapped by huge pages.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <err.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { PAGE_BYTES = 4096, MAX_LIBRARIES = 16 };

static double now_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1e9 + time.tv_nsec;
}

/* Bytes of these addresses that are mapped by huge pages. */
static long huge_bytes(unsigned long begin, unsigned long end)
{
    char line[512];
    unsigned long first, last;
    long kilobytes = 0, found;
    int is_within = 0;
    FILE *smaps = fopen("/proc/self/smaps", "re");
    if (!smaps)
        err(1, "smaps");
    while (fgets(line, sizeof line, smaps)) {
        if (sscanf(line, "%lx-%lx ", &first, &last) == 2)
            is_within = first < end && last > begin;
        else if (is_within && (sscanf(line, "FilePmdMapped: %ld", &found) == 1 ||
                               sscanf(line, "ShmemPmdMapped: %ld", &found) == 1))
            kilobytes += found;
    }
    fclose(smaps);
    return kilobytes * 1024;
}

static int by_size(const void *one, const void *other)
{
    double difference = *(const double *)one - *(const double *)other;
    return difference < 0 ? -1 : difference > 0;
}

int main(int count, char **words)
{
    int rounds = count > 3 ? atoi(words[1]) : 0, libraries = count - 3;
    long bytes = count > 3 ? atol(words[2]) : 0;
    if (rounds < 1 || bytes < PAGE_BYTES || libraries > MAX_LIBRARIES)
        errx(2, "usage: text_loader ROUNDS BYTES LIBRARY...");
    double *figures[MAX_LIBRARIES], huge[MAX_LIBRARIES];
    for (int at = 0; at < libraries; at++)
        figures[at] = calloc(rounds, sizeof(double));
    for (int round = 0; round < rounds; round++)
        for (int at = 0; at < libraries; at++) {
            void *library = dlopen(words[3 + at], RTLD_NOW);
            const volatile char *text = library ? dlsym(library, "text") : NULL;
            if (!text)
                errx(1, "%s", dlerror());
            double begin = now_ns();
            for (long byte = 0; byte < bytes; byte += PAGE_BYTES)
                (void)text[byte];
            figures[at][round] = (now_ns() - begin) * PAGE_BYTES / bytes;
            unsigned long address = (unsigned long)text;
            huge[at] = (double)huge_bytes(address, address + bytes) / bytes;
            dlclose(library);
        }
    for (int at = 0; at < libraries; at++) {
        qsort(figures[at], rounds, sizeof(double), by_size);
        printf("%s\t%.1f\t%.3f\n", words[3 + at], figures[at][rounds / 2], huge[at]);
    }
    return 0;
}
