// An internet of a few hosts, in user space: each host is a network namespace with one TUN device, all meet in a star.
//
//     cc -O2 -o wan_emulator wan_emulator.c
//     ./wan_emulator ADDRESS | PUBLIC@PRIVATE …        as root
//
// A host's link has a rate and a queue each way, a one-way delay, a loss, and can be cut; PUBLIC@PRIVATE stands behind a
// router that translates addresses. A path is its two links, one after the other. Prints a line "host I FD" for each
// host, FD being its namespace in /proc/PID/fd, and "ready". Then it answers each line on stdin with one on stdout:
//
//     link I UP DOWN DELAY LOSS QUEUE     bytes a second (0: no limit), seconds, fraction lost each way, seconds
//     cut I 0|1                           nothing passes the host's link
//     group I G                           packets pass between hosts of one group only; at first all are in 0
//     count I                             counters of the host's link, see `struct counters`
//
// The end of stdin ends everything: every process in the namespaces is killed, and with the last descriptor the kernel
// takes the namespaces and devices away. So nothing is left behind, however whoever started this has died.
// Grown from this project's own prototype of the same name (same heap, same shaping).
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { MAX_HOSTS = 64, MAX_FLOWS = 256, MAX_PACKET = 65536, BATCH = 64, KILL_TRIES = 1000 };
static const double FLOW_SECONDS[] = {7200, 120};  // TCP, the rest: after so long unused a router forgets

struct counters {
  unsigned long sent_packets, sent_bytes;          // that got onto the uplink
  unsigned long received_packets, received_bytes;  // that the host was handed
  unsigned long lost, queue_full, cut, translated_none;  // dropped here: chance, rate, cut or partition, unknown flow
};

struct flow {  // what a router remembers: the host behind it has written to this remote port
  uint8_t protocol;
  uint16_t local_port, remote_port;
  uint32_t remote;
  double used_at;
};

struct host {
  uint32_t address, private_address;  // network order; equal without a router
  int tun, namespace_fd;
  ino_t namespace;
  double up, down, delay, loss, queue;
  double up_free_at, down_free_at;
  int is_cut, group;
  struct counters count;
  struct flow flows[MAX_FLOWS];
};

struct packet {
  double at;
  unsigned long number;  // keeps the order of packets of one moment
  int from, to, length, is_on_downlink;
  unsigned char *bytes;
};

static struct host hosts[MAX_HOSTS];
static int num_hosts;

// --- packets under way: a heap by time

static struct packet *heap;
static int num_packets, room;

static int is_before(const struct packet *a, const struct packet *b) {
  return a->at < b->at || (a->at == b->at && a->number < b->number);
}

static void swap(int i, int j) {
  struct packet p = heap[i];
  heap[i] = heap[j];
  heap[j] = p;
}

static void push(struct packet p) {
  if (num_packets == room) heap = realloc(heap, (room = room ? 2 * room : 1024) * sizeof *heap);
  int i = num_packets++;
  heap[i] = p;
  for (; i && is_before(&heap[i], &heap[(i - 1) / 2]); i = (i - 1) / 2) swap(i, (i - 1) / 2);
}

static struct packet pop(void) {
  struct packet first = heap[0];
  heap[0] = heap[--num_packets];
  for (int i = 0;;) {
    int child = 2 * i + 1;
    if (child >= num_packets) break;
    if (child + 1 < num_packets && is_before(&heap[child + 1], &heap[child])) child++;
    if (!is_before(&heap[child], &heap[i])) break;
    swap(i, child);
    i = child;
  }
  return first;
}

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec + t.tv_nsec * 1e-9;
}

// --- a router's address translation: ports stay, since each router has one host behind it; only what was written to
// may write back (as with Linux' masquerade). Later fragments carry no ports and are dropped.

static void add_to_checksum(unsigned char *sum, uint32_t old, uint32_t new) {  // RFC 1624
  uint32_t s = (uint16_t)~(sum[0] << 8 | sum[1]);
  old = ntohl(old), new = ntohl(new);
  s += (uint16_t)~(old >> 16) + (uint16_t)~old + (new >> 16) + (new & 0xffff);
  while (s >> 16) s = (s & 0xffff) + (s >> 16);
  sum[0] = (uint8_t)(~s >> 8), sum[1] = (uint8_t)~s;
}

static void rewrite(unsigned char *b, int length, int offset, uint32_t new) {
  uint32_t old;
  memcpy(&old, b + offset, 4);
  memcpy(b + offset, &new, 4);
  add_to_checksum(b + 10, old, new);
  unsigned char *inner = b + (b[0] & 15) * 4;
  int room_left = length - (int)(inner - b);
  if (b[9] == IPPROTO_TCP && room_left >= 18) add_to_checksum(inner + 16, old, new);
  if (b[9] == IPPROTO_UDP && room_left >= 8 && (inner[6] || inner[7])) add_to_checksum(inner + 6, old, new);
}

static int has_ports(const unsigned char *b, int length) {
  int is_first_fragment = !((b[6] & 0x1f) || b[7]);
  return is_first_fragment && length >= (b[0] & 15) * 4 + 8;
}

static struct flow flow_of(const unsigned char *b, int is_outgoing) {
  const unsigned char *inner = b + (b[0] & 15) * 4;
  struct flow f = {.protocol = b[9]};
  memcpy(&f.remote, b + (is_outgoing ? 16 : 12), 4);
  if (b[9] == IPPROTO_ICMP) {
    memcpy(&f.local_port, inner + 4, 2);  // the echo's identifier
  } else {
    memcpy(&f.local_port, inner + (is_outgoing ? 0 : 2), 2);
    memcpy(&f.remote_port, inner + (is_outgoing ? 2 : 0), 2);
  }
  return f;
}

static struct flow *find_flow(struct host *h, struct flow f, double t) {
  for (struct flow *x = h->flows; x < h->flows + MAX_FLOWS; x++)
    if (x->used_at && x->protocol == f.protocol && x->local_port == f.local_port && x->remote == f.remote &&
        x->remote_port == f.remote_port && t - x->used_at < FLOW_SECONDS[f.protocol != IPPROTO_TCP])
      return x;
  return NULL;
}

static int translate_outgoing(struct host *h, unsigned char *b, int length, double t) {
  if (h->address == h->private_address) return 1;
  if (!has_ports(b, length)) return 0;
  struct flow f = flow_of(b, 1), *known = find_flow(h, f, t);
  if (!known) {
    known = h->flows;
    for (struct flow *x = h->flows; x < h->flows + MAX_FLOWS; x++)
      if (x->used_at < known->used_at) known = x;  // the longest unused
    *known = f;
  }
  known->used_at = t;
  rewrite(b, length, 12, h->address);
  return 1;
}

static int translate_incoming(struct host *h, unsigned char *b, int length, double t) {
  if (h->address == h->private_address) return 1;
  struct flow *known = has_ports(b, length) ? find_flow(h, flow_of(b, 0), t) : NULL;
  if (!known) return 0;
  known->used_at = t;
  rewrite(b, length, 16, h->private_address);
  return 1;
}

// --- a packet's way: uplink of the one, downlink of the other

static int passes(struct host *from, struct host *to) {
  if (!from->is_cut && !to->is_cut && from->group == to->group) return 1;
  (to->is_cut && !from->is_cut ? to : from)->count.cut++;
  return 0;
}

static int is_lost(struct host *h) {
  if (h->loss <= 0 || drand48() >= h->loss) return 0;
  h->count.lost++;
  return 1;
}

// When the packet is through a link of this rate: -1 if the queue before it is full.
static double shaped(struct host *h, double *free_at, double rate, int length, double t) {
  if (*free_at < t) *free_at = t;
  if (*free_at - t > h->queue) {
    h->count.queue_full++;
    return -1;
  }
  if (rate > 0) *free_at += length / rate;
  return *free_at;
}

static void depart(int from, unsigned char *b, int length, double t) {
  static unsigned long number;
  struct host *h = &hosts[from];
  uint32_t address;
  memcpy(&address, b + 16, 4);
  int to = -1;
  for (int k = 0; k < num_hosts; k++)
    if (hosts[k].address == address) to = k;
  if (to < 0 || to == from || !passes(h, &hosts[to])) return;
  if (!translate_outgoing(h, b, length, t)) {
    h->count.translated_none++;
    return;
  }
  if (is_lost(h)) return;
  double through = shaped(h, &h->up_free_at, h->up, length, t);
  if (through < 0) return;
  h->count.sent_packets++;
  h->count.sent_bytes += length;
  unsigned char *copy = malloc(length);
  memcpy(copy, b, length);
  push((struct packet){through + h->delay + hosts[to].delay, number++, from, to, length, 0, copy});
}

// At the downlink: -1 if the packet ends here, else when the host is to have it.
static double reach_downlink(struct packet *p, double t) {
  struct host *h = &hosts[p->to];
  if (!passes(&hosts[p->from], h)) return -1;
  if (!translate_incoming(h, p->bytes, p->length, t)) {
    h->count.translated_none++;
    return -1;
  }
  return is_lost(h) ? -1 : shaped(h, &h->down_free_at, h->down, p->length, t);
}

static void arrive(struct packet *p) {
  struct host *h = &hosts[p->to];
  if (write(h->tun, p->bytes, p->length) != p->length) return;
  h->count.received_packets++;
  h->count.received_bytes += p->length;
}

static void move_packets(double t) {
  while (num_packets && heap[0].at <= t) {
    struct packet p = pop();
    if (p.is_on_downlink) {
      arrive(&p);
    } else if ((p.at = reach_downlink(&p, p.at)) >= 0) {
      p.is_on_downlink = 1;
      push(p);
      continue;
    }
    free(p.bytes);
  }
}

// --- hosts: made, asked and changed, ended

static void must(int is_right, const char *what) {
  if (is_right) return;
  perror(what);
  exit(1);
}

static void make_host(char *description) {
  struct host *h = &hosts[num_hosts];
  char *at = strchr(description, '@'), *inside = at ? at + 1 : description, command[256];
  if (at) *at = 0;
  must(inet_pton(AF_INET, description, &h->address) == 1, description);
  must(inet_pton(AF_INET, inside, &h->private_address) == 1, inside);
  h->queue = 0.2;
  must(unshare(CLONE_NEWNET) == 0, "cannot make a network namespace");
  must((h->namespace_fd = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC)) >= 0, "/proc/self/ns/net");
  struct stat about;
  must(fstat(h->namespace_fd, &about) == 0, "fstat");
  h->namespace = about.st_ino;
  must((h->tun = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC)) >= 0, "/dev/net/tun");
  struct ifreq device = {.ifr_name = "tun0", .ifr_flags = IFF_TUN | IFF_NO_PI};
  must(ioctl(h->tun, TUNSETIFF, &device) == 0, "cannot make a TUN device");
  snprintf(command, sizeof command,
           "ip link set lo up && ip addr add %s/24 dev tun0 && ip link set tun0 up mtu 1500 txqueuelen 1000 && "
           "ip route add default dev tun0", inside);
  must(system(command) == 0, "ip");
  printf("host %d %d\n", num_hosts++, h->namespace_fd);
}

static void obey(char *line) {
  int i = -1, value, used = 0;
  struct host *h;
  char verb[16] = "";
  sscanf(line, "%15s %d %n", verb, &i, &used);
  if (i < 0 || i >= num_hosts) {
    printf("error no such host: %s\n", line);
    return;
  }
  h = &hosts[i];
  struct counters *c = &h->count;
  if (!strcmp(verb, "link") && sscanf(line + used, "%lf %lf %lf %lf %lf", &h->up, &h->down, &h->delay, &h->loss,
                                      &h->queue) == 5)
    puts("ok");
  else if (!strcmp(verb, "cut") && sscanf(line + used, "%d", &value) == 1)
    h->is_cut = value, puts("ok");
  else if (!strcmp(verb, "group") && sscanf(line + used, "%d", &value) == 1)
    h->group = value, puts("ok");
  else if (!strcmp(verb, "count"))
    printf("%lu %lu %lu %lu %lu %lu %lu %lu\n", c->sent_packets, c->sent_bytes, c->received_packets,
           c->received_bytes, c->lost, c->queue_full, c->cut, c->translated_none);
  else
    printf("error not understood: %s\n", line);
}

// 0 at the end of stdin.
static int read_commands(void) {
  static char buffer[4096];
  static size_t held;
  ssize_t got = read(STDIN_FILENO, buffer + held, sizeof buffer - 1 - held);
  if (got <= 0) return 0;
  buffer[held += got] = 0;
  char *start = buffer, *end;
  for (; (end = strchr(start, '\n')); start = end + 1) {
    *end = 0;
    obey(start);
  }
  memmove(buffer, start, held -= start - buffer);
  fflush(stdout);
  return held < sizeof buffer - 1;
}

static int kill_inhabitants(void) {
  int found = 0;
  DIR *all = opendir("/proc");
  for (struct dirent *entry; all && (entry = readdir(all));) {
    char path[300];
    struct stat about;
    snprintf(path, sizeof path, "/proc/%s/ns/net", entry->d_name);
    if (!isdigit(entry->d_name[0]) || stat(path, &about)) continue;
    for (int i = 0; i < num_hosts; i++)
      if (about.st_ino == hosts[i].namespace) found++, kill(atoi(entry->d_name), SIGKILL);
  }
  if (all) closedir(all);
  return found;
}

int main(int argc, char **argv) {
  int outside = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
  static unsigned char b[MAX_PACKET];
  struct pollfd polled[MAX_HOSTS + 1];
  prctl(PR_SET_TIMERSLACK, 1000);
  setpriority(PRIO_PROCESS, 0, -20);  // hosts that compute must not make the network late
  signal(SIGPIPE, SIG_IGN);
  srand48(1);
  if (argc > MAX_HOSTS + 1) argc = MAX_HOSTS + 1;
  for (int i = 1; i < argc; i++) make_host(argv[i]);
  must(setns(outside, CLONE_NEWNET) == 0, "setns");
  puts("ready");
  fflush(stdout);
  for (int is_wanted = 1; is_wanted;) {
    for (int i = 0; i < num_hosts; i++) polled[i] = (struct pollfd){hosts[i].tun, POLLIN, 0};
    polled[num_hosts] = (struct pollfd){STDIN_FILENO, POLLIN, 0};
    double wait = num_packets ? heap[0].at - now() : 1;
    if (wait < 0) wait = 0;
    struct timespec limit = {(time_t)wait, (long)((wait - (time_t)wait) * 1e9)};
    ppoll(polled, num_hosts + 1, &limit, NULL);
    double t = now();
    for (int i = 0; i < num_hosts; i++)
      for (int k = 0; polled[i].revents & POLLIN && k < BATCH; k++) {
        int length = read(hosts[i].tun, b, sizeof b);
        if (length <= 0) break;
        if (length >= 20 && b[0] >> 4 == 4) depart(i, b, length, t);
      }
    move_packets(now());
    if (polled[num_hosts].revents) is_wanted = read_commands();
  }
  struct timespec pause = {0, 5000000};  // a process just killed is there a little longer
  for (int k = 0; k < KILL_TRIES && kill_inhabitants(); k++) nanosleep(&pause, NULL);
  return 0;
}
