/* Attempts to reach a server over a socket. */

static long open_socket(void) { return socket((int)number_arg(0), (int)number_arg(1), (int)number_arg(2)); }

struct endpoint {
    struct sockaddr_storage address;
    socklen_t length;
    int family;
};

static struct endpoint parse_endpoint(const char *host, long port) {
    struct endpoint endpoint = {.family = strchr(host, ':') ? AF_INET6 : AF_INET};
    if (endpoint.family == AF_INET) {
        struct sockaddr_in *address = (struct sockaddr_in *)&endpoint.address;
        *address = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
        endpoint.length = sizeof *address;
        if (inet_pton(AF_INET, host, &address->sin_addr) != 1) exit_untried("address");
    } else {
        struct sockaddr_in6 *address = (struct sockaddr_in6 *)&endpoint.address;
        *address = (struct sockaddr_in6){.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port)};
        endpoint.length = sizeof *address;
        if (inet_pton(AF_INET6, host, &address->sin6_addr) != 1) exit_untried("address");
    }
    return endpoint;
}

static void set_three_second_timeout(int handle) {
    struct timeval timeout = {.tv_sec = 3};
    setsockopt(handle, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof timeout);
    setsockopt(handle, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
}

static long connect_to(void) {
    struct endpoint endpoint = parse_endpoint(arg(0), number_arg(1));
    int handle = socket(endpoint.family, SOCK_STREAM, 0);
    if (handle < 0) return -1;
    set_three_second_timeout(handle);
    return connect(handle, (struct sockaddr *)&endpoint.address, endpoint.length);
}

/* Sends a datagram and waits for the reply. */
static long datagram_to(void) {
    struct endpoint endpoint = parse_endpoint(arg(0), number_arg(1));
    char answer[16];
    int handle = socket(endpoint.family, SOCK_DGRAM, 0);
    if (handle < 0) return -1;
    set_three_second_timeout(handle);
    if (sendto(handle, "x", 1, 0, (struct sockaddr *)&endpoint.address, endpoint.length) < 0) return -1;
    return recv(handle, answer, sizeof answer, 0);
}

static long connect_unix(int abstract) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    size_t length = strlen(arg(0));
    if (length + 1 >= sizeof address.sun_path) exit_untried("path too long");
    memcpy(address.sun_path + abstract, arg(0), length);
    int handle = socket(AF_UNIX, SOCK_STREAM, 0);
    if (handle < 0) return -1;
    set_three_second_timeout(handle);
    socklen_t whole = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + length + 1);
    return connect(handle, (struct sockaddr *)&address, whole);
}
static long connect_path(void) { return connect_unix(0); }
static long connect_abstract(void) { return connect_unix(1); }

/* `with-address HOST PORT PROGRAM...`: runs PROGRAM in a new network namespace, with a server at this address. */
static int with_address(void) {
    struct endpoint endpoint = parse_endpoint(arg(0), number_arg(1));
    if (unshare(CLONE_NEWNET) < 0) exit_untried("unshare");
    int any = socket(AF_INET, SOCK_DGRAM, 0), yes = 1;
    struct ifreq up = {.ifr_name = "lo", .ifr_flags = IFF_UP | IFF_RUNNING | IFF_LOOPBACK};
    if (ioctl(any, SIOCSIFFLAGS, &up) < 0) exit_untried("loopback");
    if (endpoint.family == AF_INET) {
        struct ifreq add = {.ifr_name = "lo:1"};
        memcpy(&add.ifr_addr, &endpoint.address, sizeof add.ifr_addr);
        ((struct sockaddr_in *)&add.ifr_addr)->sin_port = 0;
        if (ioctl(any, SIOCSIFADDR, &add) < 0) exit_untried("address");
    } else {
        struct {
            struct in6_addr address;
            uint32_t prefix;
            int index;
        } add = {((struct sockaddr_in6 *)&endpoint.address)->sin6_addr, 128, 1};
        if (ioctl(socket(AF_INET6, SOCK_DGRAM, 0), SIOCSIFADDR, &add) < 0) exit_untried("address");
    }
    int stream = socket(endpoint.family, SOCK_STREAM, 0), datagram = socket(endpoint.family, SOCK_DGRAM, 0);
    setsockopt(stream, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    /* The kernel accepts a new IPv6 address only reap_child a short delay. */
    for (int times = 0; bind(stream, (struct sockaddr *)&endpoint.address, endpoint.length) < 0; times++) {
        if (times == 100) exit_untried("bind");
        usleep(30000);
    }
    if (listen(stream, 8) < 0) exit_untried("listen");
    if (bind(datagram, (struct sockaddr *)&endpoint.address, endpoint.length) < 0) exit_untried("bind");
    pid_t answering = fork();
    if (answering == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        struct endpoint from = {.length = sizeof from.address};
        char byte;
        if (recvfrom(datagram, &byte, 1, 0, (struct sockaddr *)&from.address, &from.length) == 1)
            sendto(datagram, &byte, 1, 0, (struct sockaddr *)&from.address, from.length);
        _exit(0);
    }
    pid_t child = fork();
    if (child == 0) {
        execvp(args[2], args + 2);
        _exit(127);
    }
    int status;
    waitpid(child, &status, 0);
    reap_child(answering, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 2;
}

/* `serve PORT NAME`: listens on loopback and on an abstract socket until killed. */
static int serve(void) {
    struct endpoint endpoint = parse_endpoint("127.0.0.1", number_arg(0));
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    int stream = socket(AF_INET, SOCK_STREAM, 0), named = socket(AF_UNIX, SOCK_STREAM, 0);
    size_t length = strlen(arg(1));
    if (length + 1 >= sizeof name.sun_path) exit_untried("name too long");
    memcpy(name.sun_path + 1, arg(1), length);
    if (bind(stream, (struct sockaddr *)&endpoint.address, endpoint.length) < 0 || listen(stream, 64) < 0) exit_untried("port");
    socklen_t whole = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + length + 1);
    if (bind(named, (struct sockaddr *)&name, whole) < 0 || listen(named, 64) < 0) exit_untried("name");
    for (;;) pause();
}
