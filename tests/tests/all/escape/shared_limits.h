/* Takes COUNT units of a resource that the kernel limits for a user or for the whole machine: `NAME COUNT [FILE]`.
 *
 * With FILE, the process then creates that file and holds what it got until it is killed. */
#include <linux/aio_abi.h>
#include <mqueue.h>
#include <netinet/in.h>
#include <sys/inotify.h>

static long hold(long taken) {
    int error = errno;
    if (args[1]) {
        FILE *file = fopen(arg(1), "w");
        if (!file) exit_untried("the file");
        fprintf(file, "%s", taken == number_arg(0) ? "all" : strerrorname_np(error));
        fclose(file);
        for (;;) pause();
    }
    errno = error;
    return taken == number_arg(0) ? 0 : -1;
}

/* Contexts of the old interface for asynchronous I/O, with 1000 operations each. */
static long aio_contexts(void) {
    long taken = 0;
    for (aio_context_t context = 0; taken < number_arg(0); taken++, context = 0)
        if (syscall(SYS_io_setup, 1000, &context) < 0) break;
    return hold(taken);
}

static long inotify_instances(void) {
    long taken = 0;
    while (taken < number_arg(0) && inotify_init() >= 0) taken++;
    return hold(taken);
}

/* One watch for each of COUNT new files in the current directory. */
static long inotify_watches(void) {
    long taken = 0, wanted = number_arg(0);
    char path[64];
    int instance = inotify_init();
    if (instance < 0) return -1;
    mkdir("watched", 0700);
    for (; taken < wanted; taken++) {
        snprintf(path, sizeof path, "watched/%ld", taken);
        int file = open(path, O_WRONLY | O_CREAT, 0600);
        if (file < 0 || close(file) < 0 || inotify_add_watch(instance, path, IN_MODIFY) < 0) break;
    }
    int error = errno;
    /* A removed file loses its watch. */
    for (long at = 0; at <= taken && !args[1]; at++) {
        snprintf(path, sizeof path, "watched/%ld", at);
        unlink(path);
    }
    errno = error;
    return hold(taken);
}

static long pending_signals(void) {
    sigset_t set;
    long taken = 0;
    sigemptyset(&set);
    sigaddset(&set, SIGRTMIN);
    sigprocmask(SIG_BLOCK, &set, NULL);
    while (taken < number_arg(0) && sigqueue(getpid(), SIGRTMIN, (union sigval){0}) == 0) taken++;
    return hold(taken);
}

/* Queues without a name: unlinked while open. */
static long message_queues(void) {
    long taken = 0;
    char name[32];
    struct mq_attr attributes = {.mq_maxmsg = 10, .mq_msgsize = 8192};
    for (; taken < number_arg(0); taken++) {
        snprintf(name, sizeof name, "/queue-%d-%ld", getpid(), taken);
        if (mq_open(name, O_RDWR | O_CREAT | O_EXCL, 0600, &attributes) < 0) break;
        mq_unlink(name);
    }
    return hold(taken);
}

static long terminals(void) {
    long taken = 0;
    while (taken < number_arg(0) && open("/dev/ptmx", O_RDWR | O_NOCTTY) >= 0) taken++;
    return hold(taken);
}

/* Megabytes in the buffers of TCP connections that no process reads, at most 400 connections. */
static long tcp_megabytes(void) {
    static char block[1 << 16];
    long bytes = 0, wanted = number_arg(0) << 20;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0), enough = 4 << 20;
    if (bind(listener, (struct sockaddr *)&address, length) < 0 || listen(listener, 16) < 0) exit_untried("listen");
    getsockname(listener, (struct sockaddr *)&address, &length);
    for (int at = 0; at < 400 && bytes < wanted; at++) {
        int ends[2] = {socket(AF_INET, SOCK_STREAM, 0), -1};
        setsockopt(ends[0], SOL_SOCKET, SO_SNDBUF, &enough, sizeof enough);
        if (ends[0] < 0 || connect(ends[0], (struct sockaddr *)&address, length) < 0) return hold(bytes >> 20);
        if ((ends[1] = accept(listener, NULL, NULL)) < 0) return hold(bytes >> 20);
        setsockopt(ends[1], SOL_SOCKET, SO_SNDBUF, &enough, sizeof enough);
        for (int end = 0; end < 2; end++)
            for (long sent; bytes < wanted && (sent = send(ends[end], block, sizeof block, MSG_DONTWAIT)) > 0;) bytes += sent;
    }
    errno = ENOBUFS;
    return hold(bytes >= wanted ? number_arg(0) : bytes >> 20);
}
