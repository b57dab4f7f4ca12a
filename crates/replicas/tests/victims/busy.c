/*
 * A process of eight threads that notices when it is disturbed. It prints "ready", works until its
 * standard input ends, and prints "ok" with its rounds, or what went wrong.
 *
 * Its threads compute with and compare the process's own text, exchange bytes over a pipe, wait in
 * futexes, sleep, wait in epoll, and receive two kinds of signals. With an argument, it accepts
 * that SIGSTOP and SIGCONT interrupt epoll_wait (signal(7)).
 */
#define _GNU_SOURCE
#include <errno.h>
#include <link.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

uint32_t mix(uint32_t x);

static atomic_int stop;
static atomic_int failures;
static atomic_long computed, piped, woken, slept, polled, queued, alarms;

static void fail(const char *format, ...)
{
    char text[200];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(text, sizeof text - 1, format, arguments);
    va_end(arguments);
    text[length++] = '\n';
    failures++;
    if (write(1, text, length) < 0)
        abort();
}

static uint64_t sum_of_segment(uint64_t sum, const unsigned char *at, size_t length)
{
    for (size_t i = 0; i + 8 <= length; i += 8)
        sum = (sum ^ *(const uint64_t *)(at + i)) * 1099511628211u;
    return sum;
}

static int add_object(struct dl_phdr_info *info, size_t size, void *sum)
{
    (void)size;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *segment = &info->dlpi_phdr[i];
        if (segment->p_type == PT_LOAD && !(segment->p_flags & PF_W))
            *(uint64_t *)sum = sum_of_segment(
                *(uint64_t *)sum, (void *)(info->dlpi_addr + segment->p_vaddr), segment->p_filesz);
    }
    return 0;
}

static uint64_t sum_of_text(void)
{
    uint64_t sum = 14695981039346656037u;
    dl_iterate_phdr(add_object, &sum);
    return sum;
}

static uint32_t first_mix;
static uint64_t first_sum;

static void *compute(void *unused)
{
    while (!stop) {
        if (mix(1) != first_mix)
            fail("computing: wrong result");
        if (computed++ % 64 == 0 && sum_of_text() != first_sum)
            fail("the text has changed");
    }
    return unused;
}

static int pipes[2][2];

static void *pass(void *which)
{
    int in = pipes[(long)which][0], out = pipes[!(long)which][1];
    for (;;) {
        char byte;
        ssize_t got = read(in, &byte, 1);
        if (got == 0)
            break;
        if (got != 1)
            fail("read: %s", strerror(errno));
        if (stop)
            break;
        if (write(out, &byte, 1) != 1)
            fail("write: %s", strerror(errno));
        piped++;
    }
    close(out);
    return NULL;
}

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t turn = PTHREAD_COND_INITIALIZER;
static int whose;

static void *take_turns(void *me)
{
    pthread_mutex_lock(&lock);
    while (!stop) {
        if (whose == (int)(long)me) {
            whose = !whose;
            woken++;
            pthread_cond_signal(&turn);
        } else {
            struct timespec until;
            clock_gettime(CLOCK_REALTIME, &until);
            until.tv_nsec += 50000000;
            until.tv_sec += until.tv_nsec / 1000000000;
            until.tv_nsec %= 1000000000;
            int result = pthread_cond_timedwait(&turn, &lock, &until);
            if (result != 0 && result != ETIMEDOUT)
                fail("futex: %s", strerror(result));
        }
    }
    pthread_cond_signal(&turn);
    pthread_mutex_unlock(&lock);
    return NULL;
}

static void *sleep_fully(void *unused)
{
    while (!stop) {
        struct timespec wish = {0, 7000000}, before, after;
        clock_gettime(CLOCK_MONOTONIC, &before);
        if (nanosleep(&wish, NULL) != 0)
            fail("nanosleep: %s", strerror(errno));
        clock_gettime(CLOCK_MONOTONIC, &after);
        long ns = (after.tv_sec - before.tv_sec) * 1000000000 + after.tv_nsec - before.tv_nsec;
        if (ns < wish.tv_nsec)
            fail("nanosleep returned after %ld ns", ns);
        struct pollfd none = {-1, 0, 0};
        if (poll(&none, 1, 3) != 0)
            fail("poll: %s", strerror(errno));
        slept++;
    }
    return unused;
}

static int event, bears_eintr;

static void *wait_in_epoll(void *unused)
{
    int epoll = epoll_create1(0);
    struct epoll_event wish = {.events = EPOLLIN};
    epoll_ctl(epoll, EPOLL_CTL_ADD, event, &wish);
    while (!stop) {
        struct epoll_event got;
        uint64_t count;
        if (epoll_wait(epoll, &got, 1, -1) != 1) {
            if (errno != EINTR || !bears_eintr)
                fail("epoll_wait: %s", strerror(errno));
        } else if (read(event, &count, sizeof count) != sizeof count)
            fail("eventfd: %s", strerror(errno));
        polled++;
    }
    return unused;
}

/* Queued signals carry numbers; a lost, repeated or reordered one shows. */
static volatile sig_atomic_t expected;

static void on_queued(int signal, siginfo_t *info, void *context)
{
    (void)signal, (void)context;
    if (info->si_value.sival_int != expected)
        fail("signal %d instead of %d", info->si_value.sival_int, (int)expected);
    expected = info->si_value.sival_int + 1;
    queued++;
}

static void on_alarm(int signal)
{
    (void)signal;
    alarms++;
}

static void *compute_under_signals(void *unused)
{
    sigset_t ours;
    sigemptyset(&ours);
    sigaddset(&ours, SIGRTMIN + 3);
    sigaddset(&ours, SIGALRM);
    pthread_sigmask(SIG_UNBLOCK, &ours, NULL);
    return compute(unused);
}

int main(int argument_count, char **arguments)
{
    (void)arguments;
    bears_eintr = argument_count > 1;
    pthread_t threads[9];
    int count = 0;
    first_mix = mix(1);
    first_sum = sum_of_text();

    /* Only one thread handles signals, so calls of the others must never be interrupted. */
    sigset_t all;
    sigemptyset(&all);
    sigaddset(&all, SIGRTMIN + 3);
    sigaddset(&all, SIGALRM);
    pthread_sigmask(SIG_BLOCK, &all, NULL);
    struct sigaction action = {.sa_sigaction = on_queued, .sa_flags = SA_SIGINFO};
    sigaction(SIGRTMIN + 3, &action, NULL);
    struct sigaction alarm_action = {.sa_handler = on_alarm};
    sigaction(SIGALRM, &alarm_action, NULL);

    event = eventfd(0, 0);
    if (pipe(pipes[0]) || pipe(pipes[1]) || event < 0)
        return 2;
    pthread_create(&threads[count++], NULL, compute, NULL);
    pthread_create(&threads[count++], NULL, pass, (void *)0);
    pthread_create(&threads[count++], NULL, pass, (void *)1);
    pthread_create(&threads[count++], NULL, take_turns, (void *)0);
    pthread_create(&threads[count++], NULL, take_turns, (void *)1);
    pthread_create(&threads[count++], NULL, sleep_fully, NULL);
    pthread_create(&threads[count++], NULL, wait_in_epoll, NULL);
    pthread_create(&threads[count++], NULL, compute_under_signals, NULL);
    pthread_t handler = threads[count - 1];
    if (write(pipes[0][1], "x", 1) != 1)
        return 2;
    struct itimerval rate = {{0, 500}, {0, 500}};
    setitimer(ITIMER_REAL, &rate, NULL);
    printf("ready\n");
    fflush(stdout);

    int sent = 0;
    struct pollfd input = {0, POLLIN, 0};
    while (poll(&input, 1, 1) == 0) {
        /* At most 100 in flight: the limit of queued signals must not drop one. */
        while (sent - queued < 100) {
            union sigval value = {.sival_int = sent};
            if (pthread_sigqueue(handler, SIGRTMIN + 3, value) != 0) {
                fail("sigqueue: %s", strerror(errno));
                break;
            }
            sent++;
        }
        uint64_t one = 1;
        if (write(event, &one, sizeof one) != sizeof one)
            fail("eventfd: %s", strerror(errno));
    }
    for (int i = 0; i < 5000 && queued < sent; i++)
        usleep(1000);
    if (queued != sent)
        fail("%ld of %d signals arrived", (long)queued, sent);
    stop = 1;
    uint64_t one = 1;
    if (write(event, &one, sizeof one) != sizeof one)
        fail("eventfd: %s", strerror(errno));
    for (int i = 0; i < count; i++)
        pthread_join(threads[i], NULL);
    printf("%s computed=%ld piped=%ld woken=%ld slept=%ld polled=%ld queued=%ld alarms=%ld\n",
           failures ? "FAILED" : "ok", (long)computed, (long)piped, (long)woken, (long)slept,
           (long)polled, (long)queued, (long)alarms);
    return failures != 0;
}
