/* Attempts to reach somebody over a socket. */

static long open_socket(void) { return socket((int)number(0), (int)number(1), (int)number(2)); }

struct place {
    struct sockaddr_storage address;
    socklen_t length;
    int family;
};

static struct place place_of(const char *host, long port) {
    struct place place = {.family = strchr(host, ':') ? AF_INET6 : AF_INET};
    if (place.family == AF_INET) {
        struct sockaddr_in *address = (struct sockaddr_in *)&place.address;
        *address = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
        place.length = sizeof *address;
        if (inet_pton(AF_INET, host, &address->sin_addr) != 1) untried("address");
    } else {
        struct sockaddr_in6 *address = (struct sockaddr_in6 *)&place.address;
        *address = (struct sockaddr_in6){.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port)};
        place.length = sizeof *address;
        if (inet_pton(AF_INET6, host, &address->sin6_addr) != 1) untried("address");
    }
    return place;
}

/* Gives up after three seconds, as if refused. */
static void within_three_seconds(int handle) {
    struct timeval most = {.tv_sec = 3};
    setsockopt(handle, SOL_SOCKET, SO_SNDTIMEO, &most, sizeof most);
    setsockopt(handle, SOL_SOCKET, SO_RCVTIMEO, &most, sizeof most);
}

static long connect_to(void) {
    struct place place = place_of(word(0), number(1));
    int handle = socket(place.family, SOCK_STREAM, 0);
    if (handle < 0) return -1;
    within_three_seconds(handle);
    return connect(handle, (struct sockaddr *)&place.address, place.length);
}

/* A datagram that is answered. */
static long datagram_to(void) {
    struct place place = place_of(word(0), number(1));
    char answer[16];
    int handle = socket(place.family, SOCK_DGRAM, 0);
    if (handle < 0) return -1;
    within_three_seconds(handle);
    if (sendto(handle, "x", 1, 0, (struct sockaddr *)&place.address, place.length) < 0) return -1;
    return recv(handle, answer, sizeof answer, 0);
}

static long connect_unix(int abstract) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    size_t length = strlen(word(0));
    if (length + 1 >= sizeof address.sun_path) untried("a path too long");
    memcpy(address.sun_path + abstract, word(0), length);
    int handle = socket(AF_UNIX, SOCK_STREAM, 0);
    if (handle < 0) return -1;
    within_three_seconds(handle);
    socklen_t whole = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + length + 1);
    return connect(handle, (struct sockaddr *)&address, whole);
}
static long connect_path(void) { return connect_unix(0); }
static long connect_abstract(void) { return connect_unix(1); }

/* `with-address HOST PORT PROGRAM...`: in a network of its own that has this address, and somebody who listens there. */
static int with_address(void) {
    struct place place = place_of(word(0), number(1));
    if (unshare(CLONE_NEWNET) < 0) untried("unshare");
    int any = socket(AF_INET, SOCK_DGRAM, 0), yes = 1;
    struct ifreq up = {.ifr_name = "lo", .ifr_flags = IFF_UP | IFF_RUNNING | IFF_LOOPBACK};
    if (ioctl(any, SIOCSIFFLAGS, &up) < 0) untried("loopback");
    if (place.family == AF_INET) {
        struct ifreq add = {.ifr_name = "lo:1"};
        memcpy(&add.ifr_addr, &place.address, sizeof add.ifr_addr);
        ((struct sockaddr_in *)&add.ifr_addr)->sin_port = 0;
        if (ioctl(any, SIOCSIFADDR, &add) < 0) untried("address");
    } else {
        struct {
            struct in6_addr address;
            uint32_t prefix;
            int index;
        } add = {((struct sockaddr_in6 *)&place.address)->sin6_addr, 128, 1};
        if (ioctl(socket(AF_INET6, SOCK_DGRAM, 0), SIOCSIFADDR, &add) < 0) untried("address");
    }
    int stream = socket(place.family, SOCK_STREAM, 0), datagram = socket(place.family, SOCK_DGRAM, 0);
    setsockopt(stream, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    /* A new IPv6 address is not at once one's own. */
    for (int times = 0; bind(stream, (struct sockaddr *)&place.address, place.length) < 0; times++) {
        if (times == 100) untried("bind");
        usleep(30000);
    }
    if (listen(stream, 8) < 0) untried("listen");
    if (bind(datagram, (struct sockaddr *)&place.address, place.length) < 0) untried("bind");
    pid_t answering = fork();
    if (answering == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        struct place from = {.length = sizeof from.address};
        char byte;
        if (recvfrom(datagram, &byte, 1, 0, (struct sockaddr *)&from.address, &from.length) == 1)
            sendto(datagram, &byte, 1, 0, (struct sockaddr *)&from.address, from.length);
        _exit(0);
    }
    pid_t child = fork();
    if (child == 0) {
        execvp(words[2], words + 2);
        _exit(127);
    }
    int status;
    waitpid(child, &status, 0);
    after(answering, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 2;
}

/* `serve PORT NAME`: somebody who listens on loopback and under an abstract name, until killed. */
static int serve(void) {
    struct place place = place_of("127.0.0.1", number(0));
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    int stream = socket(AF_INET, SOCK_STREAM, 0), named = socket(AF_UNIX, SOCK_STREAM, 0);
    size_t length = strlen(word(1));
    if (length + 1 >= sizeof name.sun_path) untried("a name too long");
    memcpy(name.sun_path + 1, word(1), length);
    if (bind(stream, (struct sockaddr *)&place.address, place.length) < 0 || listen(stream, 64) < 0) untried("port");
    socklen_t whole = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + length + 1);
    if (bind(named, (struct sockaddr *)&name, whole) < 0 || listen(named, 64) < 0) untried("name");
    for (;;) pause();
}
