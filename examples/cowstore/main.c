/*
 * main.c - the command line of cowstore
 *
 * usage: cowstore [-m CACHE] STORE COMMAND …           (see usage() below)
 *
 * Each command that changes something is one commit: it has happened as a whole or not at all, whenever the power goes. A
 * lock on STORE (flock) keeps a second process out.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include "cowstore.h"

enum { CHUNK = 1 << 20 };

static const char *store_path;
static unsigned char chunk[CHUNK];

static void usage(FILE *to)
{
	fprintf(to, "usage: cowstore [-m CACHE] STORE COMMAND\n"
		    "\n"
		    "  create [SIZE]          an empty store of SIZE bytes (k, m, g, t; default 16g; sparse). `put` makes it, too\n"
		    "  put NAME [FILE|-]      FILE (or what comes in) becomes object NAME, in place of what it was\n"
		    "  get NAME[@SNAP]        its bytes to standard output\n"
		    "  ls [@SNAP]             objects with size and time; and the snapshots\n"
		    "  snapshot SNAP          keep all objects as they are now, as NAME@SNAP\n"
		    "  rm NAME|@SNAP          an object, or a snapshot\n"
		    "  verify                 read everything, compare checksums; exit status 0 if all is well\n"
		    "  stat                   numbers\n"
		    "\n"
		    "CACHE: bytes of memory for contents, default 64m; objects may be larger.\n");
}

__attribute__((format(printf, 1, 2)))
static int complain(const char *format, ...)
{
	va_list ap;

	fprintf(stderr, "cowstore: ");
	va_start(ap, format);
	vfprintf(stderr, format, ap);
	va_end(ap);
	fputc('\n', stderr);
	return 1;
}

static const char *text_of(long long error)
{
	switch (error) {
	case -EBADMSG: return "its bytes on the device are not those that were written (checksum)";
	case -EUCLEAN: return "the store's metadata is damaged";
	case -EROFS: return "the store takes no changes";
	case -ENOSPC: return "no space is left in the store, or on the file system below it";
	case -EOPNOTSUPP: return "direct I/O (O_DIRECT) does not work there; try another file system";
	default: return strerror((int)-error);
	}
}

static void tell(void *priv, const char *message)
{
	(void)priv;
	complain("%s: %s", store_path, message);
}

/* "64m" and the like; 0 if it is none. */
static uint64_t parse_size(const char *text)
{
	static const char units[] = "kmgt";
	char *end;
	unsigned long long n;
	const char *unit;

	errno = 0;
	n = strtoull(text, &end, 10);
	if (end == text || errno || *text == '-')
		return 0;
	if (!*end)
		return n;
	unit = strchr(units, *end | 0x20);
	if (!unit || end[1])
		return 0;
	unsigned shift = 10 * (unsigned)(unit - units + 1);

	return n > UINT64_MAX >> shift ? 0 : (uint64_t)n << shift;
}

/* --- the store -------------------------------------------------------------------------------------------- */

struct session {
	int lock;                               /* descriptor with the flock */
	struct iomap_device *device;
	struct cow_store *store;
};

static int session_end(struct session *s, int status)
{
	if (s->store)
		cow_close(s->store);
	if (s->device)
		iomap_device_close(s->device);
	if (s->lock >= 0)
		close(s->lock);
	s->store = NULL;
	s->device = NULL;
	s->lock = -1;
	return status;
}

/* 0, or 1 after it has said why not. */
static int session_begin(struct session *s, const char *path, uint64_t cache, bool readonly, bool format)
{
	struct cow_params params = { .cache_bytes = cache, .readonly = readonly, .format = format, .tell = tell };
	int ret;

	*s = (struct session) { .lock = open(path, (readonly ? O_RDONLY : O_RDWR) | O_CLOEXEC) };
	if (s->lock < 0)
		return complain("%s: %s", path, strerror(errno));
	if (flock(s->lock, LOCK_EX | LOCK_NB)) {
		complain("%s: %s", path, errno == EWOULDBLOCK ? "another process is using it" : strerror(errno));
		return session_end(s, 1);
	}
	ret = iomap_device_open_aio(path, readonly ? O_RDONLY : O_RDWR, 0, &s->device);
	if (!ret)
		ret = cow_open(s->device, &params, &s->store);
	if (!ret)
		return 0;
	complain("%s: cannot open the store: %s", path, text_of(ret));
	return session_end(s, 1);
}

/* A store appears under its name when it is whole: it is made under another. A block device is formatted as it is. */
static int create(const char *path, uint64_t size, uint64_t cache)
{
	struct session s;
	struct stat st;
	char *temp;
	int fd;

	if (stat(path, &st) == 0) {
		if (!S_ISBLK(st.st_mode))
			return complain("%s: exists already", path);
		return session_begin(&s, path, cache, false, true) || session_end(&s, 0);
	}
	if (asprintf(&temp, "%s.new.%ld", path, (long)getpid()) < 0)
		return complain("%s", strerror(ENOMEM));
	fd = open(temp, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
	if (fd < 0 || ftruncate(fd, (off_t)(size & ~UINT64_C(4095)))) {
		complain("%s: cannot be created with %" PRIu64 " bytes: %s", path, size, strerror(errno));
		goto remove;
	}
	if (session_begin(&s, temp, cache, false, true))
		goto remove;
	session_end(&s, 0);
	if (fsync(fd) || link(temp, path)) {    /* link, unlike rename, does not replace one that has appeared meanwhile */
		complain("%s: cannot be created: %s", path, strerror(errno));
		goto remove;
	}
	close(fd);
	unlink(temp);
	free(temp);
	return 0;
remove:
	if (fd >= 0) {
		close(fd);
		unlink(temp);
	}
	free(temp);
	return 1;
}

static int commit(struct session *s)
{
	int ret = cow_commit(s->store);

	return ret ? complain("%s: nothing was changed: %s", store_path, text_of(ret)) : 0;
}

/* Cuts "NAME@SNAP" in two; NULL without '@'. */
static char *split_at(char *name)
{
	char *at = strchr(name, '@');

	if (at)
		*at++ = '\0';
	return at;
}

/* --- commands: the exit status ------------------------------------------------------------------------------ */

static int put(struct session *s, const char *name, const char *from)
{
	int fd = from && strcmp(from, "-") != 0 ? open(from, O_RDONLY | O_CLOEXEC) : STDIN_FILENO, status = 1;
	struct cow_object *object;
	uint64_t pos = 0;
	ssize_t n = 0;
	int ret;

	if (fd < 0)
		return complain("%s: %s", from, strerror(errno));
	ret = cow_object_open(s->store, name, NULL, true, &object);
	if (ret) {
		complain("%s: %s", name, ret == -EINVAL ? "not a name: 1 to 200 bytes, no control characters, no '@'" : text_of(ret));
		goto close_from;
	}
	ret = cow_truncate(object, 0);
	while (!ret) {
		size_t got = 0;

		while (got < CHUNK && (n = read(fd, chunk + got, CHUNK - got)) > 0)
			got += (size_t)n;
		if (n < 0) {
			complain("%s: %s", from ? from : "standard input", strerror(errno));
			goto close_object;
		}
		for (size_t off = 0; off < got && !ret; off += (size_t)n) {
			n = cow_write(object, chunk + off, got - off, pos + off);
			ret = n < 0 ? (int)n : 0;
		}
		pos += got;
		if (got < CHUNK)
			break;
	}
	if (ret)
		complain("%s: at byte %" PRIu64 ": %s", name, pos, text_of(ret));
	else
		status = commit(s);
close_object:
	cow_object_close(object);
close_from:
	if (fd != STDIN_FILENO)
		close(fd);
	return status;
}

static int get(struct session *s, char *name)
{
	const char *snapshot = split_at(name);
	struct cow_object *object;
	uint64_t pos = 0;
	ssize_t n;
	int ret = cow_object_open(s->store, name, snapshot, false, &object);

	if (ret)
		return complain("%s%s%s: %s", name, snapshot ? "@" : "", snapshot ? snapshot : "", text_of(ret));
	while ((n = cow_read(object, chunk, CHUNK, pos)) > 0) {
		if (fwrite(chunk, 1, (size_t)n, stdout) != (size_t)n) {
			cow_object_close(object);
			return complain("standard output: %s", strerror(errno));
		}
		pos += (uint64_t)n;
	}
	cow_object_close(object);
	if (n < 0)
		return complain("%s: at byte %" PRIu64 ": %s", name, pos, text_of(n));
	return fflush(stdout) ? complain("standard output: %s", strerror(errno)) : 0;
}

static int by_name(const void *a, const void *b)
{
	return strcmp(((const struct cow_info *)a)->name, ((const struct cow_info *)b)->name);
}

static int print_list(struct session *s, const char *snapshot, bool snapshots)
{
	struct cow_info *info;
	ssize_t n = cow_list(s->store, snapshot, snapshots, &info);

	if (n < 0)
		return complain("%s%s: %s", snapshot ? "@" : "", snapshot ? snapshot : store_path, text_of(n));
	qsort(info, (size_t)n, sizeof(*info), by_name);
	for (ssize_t i = 0; i < n; i++) {
		time_t t = (time_t)info[i].time;
		char when[32] = "-", size[32] = "-";

		if (info[i].generation)
			strftime(when, sizeof(when), "%Y-%m-%d %H:%M:%S", localtime(&t));
		if (!snapshots)
			snprintf(size, sizeof(size), "%" PRIu64, info[i].size);
		printf("%14s  %s  %s%s\n", size, when, snapshots ? "@" : "", info[i].name);
	}
	free(info);
	return 0;
}

static int ls(struct session *s, const char *snapshot)
{
	if (snapshot)
		return print_list(s, snapshot + (*snapshot == '@'), false);
	return print_list(s, NULL, false) || print_list(s, NULL, true);
}

static int take_snapshot(struct session *s, const char *name)
{
	int ret = cow_snapshot(s->store, name + (*name == '@'));

	if (ret)
		return complain("%s: %s", name, ret == -EINVAL ? "not a name: 1 to 200 bytes, no control characters, no '@'" : text_of(ret));
	return commit(s);
}

static int rm(struct session *s, const char *name)
{
	int ret = *name == '@' ? cow_snapshot_remove(s->store, name + 1) : cow_remove(s->store, name);

	return ret ? complain("%s: %s", name, text_of(ret)) : commit(s);
}

static int verify(struct session *s)
{
	int problems = cow_verify(s->store);

	if (problems < 0)
		return complain("%s: %s", store_path, text_of(problems));
	if (problems)
		return complain("%s: %d problem%s", store_path, problems, problems == 1 ? "" : "s");
	printf("%s: clean\n", store_path);
	return 0;
}

static int print_stat(struct session *s)
{
	struct cow_stat st;
	int ret = cow_stat(s->store, &st);

	if (ret)
		return complain("%s: %s", store_path, text_of(ret));
	printf("objects          %" PRIu64 "\nsnapshots        %" PRIu64 "\ncommits          %" PRIu64 "\n", st.objects, st.snapshots,
	       st.generation);
	printf("size_bytes       %" PRIu64 "\nfree_bytes       %" PRIu64 "\nmetadata_bytes   %" PRIu64 "\n", st.blocks * 4096,
	       st.free_blocks * 4096, st.metadata_blocks * 4096);
	return 0;
}

static const struct command {
	const char *name;
	int min, max;                   /* arguments */
	bool readonly;
} commands[] = {
	{ "create", 0, 1, false }, { "put", 1, 2, false }, { "get", 1, 1, true }, { "ls", 0, 1, true },
	{ "snapshot", 1, 1, false }, { "rm", 1, 1, false }, { "verify", 0, 0, true }, { "stat", 0, 0, true },
};

int main(int argc, char **argv)
{
	const struct command *command = NULL;
	uint64_t cache = 64 << 20, size = (uint64_t)16 << 30;
	struct session s;
	int opt, status;

	while ((opt = getopt(argc, argv, "+hm:")) != -1) {
		if (opt == 'h') {
			usage(stdout);
			return 0;
		}
		cache = opt == 'm' ? parse_size(optarg) : 0;
		if (!cache) {
			usage(stderr);
			return 2;
		}
	}
	argc -= optind;
	argv += optind;
	for (size_t i = 0; argc >= 2 && i < sizeof(commands) / sizeof(*commands); i++)
		if (strcmp(argv[1], commands[i].name) == 0)
			command = &commands[i];
	if (!command || argc - 2 < command->min || argc - 2 > command->max) {
		if (argc >= 2 && !command)
			complain("%s: no such command", argv[1]);
		usage(stderr);
		return 2;
	}
	store_path = argv[0];
	if (command == &commands[0]) {
		if (argc == 3)
			size = parse_size(argv[2]);
		if (!size)
			return complain("%s: not a size", argv[2]);
		return create(store_path, size, cache);
	}
	if (strcmp(command->name, "put") == 0 && access(store_path, F_OK) && create(store_path, size, cache))
		return 1;
	if (session_begin(&s, store_path, cache, command->readonly, false))
		return 1;
	switch (command->name[0]) {
	case 'p': status = put(&s, argv[2], argc == 4 ? argv[3] : NULL); break;
	case 'g': status = get(&s, argv[2]); break;
	case 'l': status = ls(&s, argc == 3 ? argv[2] : NULL); break;
	case 'r': status = rm(&s, argv[2]); break;
	case 'v': status = verify(&s); break;
	default: status = command->name[1] == 'n' ? take_snapshot(&s, argv[2]) : print_stat(&s); break;
	}
	return session_end(&s, status);
}
