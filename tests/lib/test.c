/*
 * test.c - see test.h
 */
#include "test.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* --- files ---------------------------------------------------------------------------------------------------------- */

const char *t_dir(void)
{
	static char dir[PATH_MAX];
	const char *wanted = getenv("IOMAP_TEST_DIR");

	if (dir[0])
		return dir;
	if (!wanted || !*wanted) {
		mkdir("build", 0777);
		mkdir("build/tmp", 0777);
		wanted = "build/tmp";
	}
	if (!realpath(wanted, dir)) {
		fprintf(stderr, "%s: %s\n", wanted, strerror(errno));
		exit(EXIT_FAILURE);
	}
	return dir;
}

bool t_direct_io(void)
{
	const char *path = t_tmpfile();
	int fd = open(path, O_RDWR | O_CREAT | O_DIRECT | O_CLOEXEC, 0600);

	if (fd < 0)
		return false;
	close(fd);
	unlink(path);
	return true;
}

/* Paths handed out in this process, and by which process: a forked child must not remove its parent's files. */
static struct tmpfile { struct tmpfile *next; pid_t pid; char path[]; } *tmpfiles;

static void remove_tmpfiles(void)
{
	while (tmpfiles) {
		struct tmpfile *f = tmpfiles;

		tmpfiles = f->next;
		if (f->pid == getpid())
			unlink(f->path);
		free(f);
	}
}

const char *t_tmpfile(void)
{
	static unsigned count;
	const char *dir = t_dir();
	size_t size = strlen(dir) + 64;
	struct tmpfile *f = malloc(sizeof(*f) + size);

	if (!f)
		abort();
	if (!count)
		atexit(remove_tmpfiles);
	f->pid = getpid();
	snprintf(f->path, size, "%s/t%ld-%u", dir, (long)f->pid, count++);
	unlink(f->path);
	f->next = tmpfiles;
	tmpfiles = f;
	return f->path;
}

/* --- skipping ------------------------------------------------------------------------------------------------------- */

static _Atomic unsigned *skips;         /* shared with the processes that Check forks */

void t_skip_init(void)
{
	if (!skips) {
		void *p = mmap(NULL, sizeof(*skips), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

		skips = p == MAP_FAILED ? NULL : p;
	}
}

void t_skip(const char *why)
{
	t_skip_init();
	printf("skipped: %s\n", why);
	if (skips)
		(*skips)++;
}

unsigned t_skip_count(void)
{
	return skips ? *skips : 0;
}

/* --- contents ------------------------------------------------------------------------------------------------------- */

/* splitmix64's finaliser: a bijection, so that a word found can be traced back to its position and seed. */
static uint64_t mix(uint64_t x)
{
	x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
	return x ^ x >> 31;
}

static uint64_t unmix(uint64_t x)
{
	x = (x ^ x >> 31 ^ x >> 62) * UINT64_C(0x319642b2d24d8ec3);
	x = (x ^ x >> 27 ^ x >> 54) * UINT64_C(0x96de1b173f119089);
	return x ^ x >> 30 ^ x >> 60;
}

/* Positions are told apart up to 2^50. Bit 47 is always set, so that the whole is hardly ever zero and is known again. */
#define WORD_MARK (UINT64_C(1) << 47)

static uint64_t word_at(uint64_t pos, uint64_t seed)
{
	return mix(seed << 48 | WORD_MARK | ((pos >> 3) & (WORD_MARK - 1)));
}

static uint8_t byte_at(uint64_t pos, uint64_t seed)
{
	return (uint8_t)(word_at(pos, seed) >> (pos & 7) * 8);
}

void t_fill(void *buf, uint64_t pos, size_t len, uint64_t seed)
{
	uint8_t *p = buf;

	for (; len && pos & 7; len--)
		*p++ = byte_at(pos++, seed);
	for (; len >= 8; len -= 8, pos += 8, p += 8) {
		uint64_t word = word_at(pos, seed);

		memcpy(p, &word, 8);
	}
	for (; len; len--)
		*p++ = byte_at(pos++, seed);
}

bool t_check_fill(const void *buf, uint64_t pos, size_t len, uint64_t seed)
{
	const uint8_t *p = buf;
	size_t i = 0;

	while (i < len) {
		if (!((pos + i) & 7) && len - i >= 8) {
			uint64_t word = word_at(pos + i, seed);

			if (!memcmp(p + i, &word, 8)) {
				i += 8;
				continue;
			}
		}
		if (p[i] != byte_at(pos + i, seed))
			break;
		i++;
	}
	if (i == len)
		return true;

	fprintf(stderr, "contents differ from position %llu on (byte %zu of %zu at %llu): 0x%02x, wanted 0x%02x",
		(unsigned long long)(pos + i), i, len, (unsigned long long)pos, p[i], byte_at(pos + i, seed));
	/* the aligned word around it, or the next one: whose is it? */
	uint64_t word_pos = (pos + i) & ~UINT64_C(7);

	if (word_pos < pos)
		word_pos += 8;
	if (word_pos + 8 <= pos + len) {
		uint64_t word, what;

		memcpy(&word, p + (word_pos - pos), 8);
		what = unmix(word);
		if (!word)
			fprintf(stderr, "; zeros are there");
		else if (what & WORD_MARK && (what & (WORD_MARK - 1)) < UINT64_C(1) << 37)
			fprintf(stderr, "; position %llu of seed %llu is there",
				(unsigned long long)((what & (WORD_MARK - 1)) << 3), (unsigned long long)(what >> 48));
	}
	fprintf(stderr, "\n");
	return false;
}

/* --- chance --------------------------------------------------------------------------------------------------------- */

uint64_t t_random(uint64_t *state)
{
	*state += UINT64_C(0x9e3779b97f4a7c15);
	return mix(*state);
}

uint64_t t_random_below(uint64_t *state, uint64_t n)
{
	return t_random(state) % n;
}

/* --- the command line ----------------------------------------------------------------------------------------------- */

void t_parse_options(struct t_options *options, int argc, char **argv)
{
	const char *long_run = getenv("IOMAP_TEST_LONG");

	options->long_run = long_run && *long_run;
	for (int i = 1; i < argc; i++)
		if (!strcmp(argv[i], "--long"))
			options->long_run = true;
	if (options->long_run && options->long_seconds)
		options->seconds = options->long_seconds;
	if (options->long_run && options->long_ops)
		options->ops = options->long_ops;
	for (int i = 1; i < argc; i++) {
		uint64_t *field = !strcmp(argv[i], "--seconds") ? &options->seconds :
				  !strcmp(argv[i], "--ops") ? &options->ops :
				  !strcmp(argv[i], "--seed") ? &options->seed : NULL;

		if (!strcmp(argv[i], "--long"))
			continue;
		if (!field || i + 1 == argc) {
			fprintf(stderr, "usage: %s [--long] [--seconds N] [--ops N] [--seed N]\n", argv[0]);
			exit(2);
		}
		*field = strtoull(argv[++i], NULL, 0);
	}
	if (!options->seed) {
		struct timespec now;

		clock_gettime(CLOCK_REALTIME, &now);
		options->seed = ((uint64_t)now.tv_sec << 30 ^ (uint64_t)now.tv_nsec) | 1;
	}
	printf("seed %llu\n", (unsigned long long)options->seed);
	fflush(stdout);
}
