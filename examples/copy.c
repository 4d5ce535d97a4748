/*
 * copy.c - copy a file through a cache of 64 MiB
 *
 * usage: copy SRC DST
 *
 * Reads SRC and writes DST through one page cache, larger files than the cache included, and says "done" only when DST is
 * durable. Both must be on file systems that can do O_DIRECT.
 */
#include <fcntl.h>
#include <iomap/iomap.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHUNK (1 << 20)

static int fail(const char *what, long long error)
{
	fprintf(stderr, "copy: %s: %s\n", what, strerror((int)-error));
	return 1;
}

/* Everything from @src to @dst: 0 or a negative errno. */
static long long copy(struct iomap_file *src, struct iomap_file *dst)
{
	char *buf = malloc(CHUNK);
	off_t pos = 0;
	ssize_t n;

	if (!buf)
		return -12;
	while ((n = iomap_pread(src, buf, CHUNK, pos)) > 0) {
		ssize_t wrote = iomap_pwrite(dst, buf, (size_t)n, pos);

		if (wrote < 0) {
			n = wrote;
			break;
		}
		pos += wrote;   /* a short count repeats the rest, and meets the error */
	}
	free(buf);
	return n < 0 ? n : iomap_fsync(dst);
}

int main(int argc, char **argv)
{
	struct iomap_cache_params params = IOMAP_CACHE_PARAMS_INIT;
	struct iomap_cache *cache;
	struct iomap_file *src, *dst;
	long long ret;

	if (argc != 3) {
		fprintf(stderr, "usage: copy SRC DST\n");
		return 2;
	}
	params.memory_bytes = 64 << 20;
	ret = iomap_cache_create(&cache, &params);
	if (ret)
		return fail("cache", ret);
	ret = iomap_open(cache, argv[1], O_RDONLY, 0, &src);
	if (ret)
		return fail(argv[1], ret);
	ret = iomap_open(cache, argv[2], O_RDWR | O_CREAT | O_TRUNC, 0644, &dst);
	if (ret)
		return fail(argv[2], ret);
	ret = copy(src, dst);
	if (ret)
		fail(argv[2], ret);
	iomap_close(src);
	iomap_close(dst);
	if (ret)
		iomap_cache_abandon(cache);
	else
		ret = iomap_cache_destroy(cache);
	return ret ? 1 : 0;
}
