/*
 * Times what a program does with a file: opening and closing it, stat(2), and the first touch of
 * each page of a mapping as an executable has it. Prints one line for each file: its path and the
 * medians of the rounds in nanoseconds, which take the files by turns.
 */
#define _GNU_SOURCE
#include <err.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { CALLS = 2000, PAGE_BYTES = 4096, MAX_FILES = 16 };

static double now_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1e9 + time.tv_nsec;
}

static double open_ns(const char *path)
{
    double begin = now_ns();
    for (int call = 0; call < CALLS; call++) {
        int file = open(path, O_RDONLY | O_CLOEXEC);
        if (file < 0)
            err(1, "%s", path);
        close(file);
    }
    return (now_ns() - begin) / CALLS;
}

static double stat_ns(const char *path)
{
    struct stat found;
    double begin = now_ns();
    for (int call = 0; call < CALLS; call++)
        if (stat(path, &found))
            err(1, "%s", path);
    return (now_ns() - begin) / CALLS;
}

/* With the mapping itself, a page. */
static double touch_ns(const char *path)
{
    struct stat found;
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0 || fstat(file, &found))
        err(1, "%s", path);
    double begin = now_ns();
    const volatile char *text =
        mmap(NULL, found.st_size, PROT_READ | PROT_EXEC, MAP_PRIVATE, file, 0);
    if (text == MAP_FAILED)
        err(1, "mmap of %s", path);
    for (off_t at = 0; at < found.st_size; at += PAGE_BYTES)
        (void)text[at];
    double taken = now_ns() - begin;
    munmap((void *)text, found.st_size);
    close(file);
    return taken / ((found.st_size + PAGE_BYTES - 1) / PAGE_BYTES);
}

static int by_size(const void *one, const void *other)
{
    double difference = *(const double *)one - *(const double *)other;
    return difference < 0 ? -1 : difference > 0;
}

static double median(double *figures, int count)
{
    qsort(figures, count, sizeof *figures, by_size);
    return figures[count / 2];
}

int main(int count, char **words)
{
    int rounds = count > 2 ? atoi(words[1]) : 0, files = count - 2;
    if (rounds < 1 || files > MAX_FILES)
        errx(2, "usage: text_costs ROUNDS FILE...");
    double *figures[3][MAX_FILES];
    for (int kind = 0; kind < 3; kind++)
        for (int file = 0; file < files; file++)
            figures[kind][file] = calloc(rounds, sizeof(double));
    for (int round = 0; round < rounds; round++)
        for (int file = 0; file < files; file++) {
            const char *path = words[file + 2];
            figures[0][file][round] = open_ns(path);
            figures[1][file][round] = stat_ns(path);
            figures[2][file][round] = touch_ns(path);
        }
    for (int file = 0; file < files; file++) {
        printf("%s", words[file + 2]);
        for (int kind = 0; kind < 3; kind++)
            printf("\t%.1f", median(figures[kind][file], rounds));
        printf("\n");
    }
    return 0;
}
