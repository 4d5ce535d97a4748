/*
 * scratch.c - a large temporary file that O_DIRECT works on and that nothing can leave behind
 *
 * The library itself is asked whether O_DIRECT works: iomap_device_open_aio() on a small file there and then is
 * the answer that counts. The large file is written by plain write(2) and fsync(2), then dropped from the
 * kernel's cache, whose pages every direct I/O would otherwise have to look for. It loses its name right after
 * it is made; what opens it later goes through /proc/self/fd.
 */
#include "scratch.h"
#include "bench.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <mntent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <iomap/iomap.h>

#define WRITE_CHUNK MIB(1)
#define SPARE_BYTES MIB(64)     /* a file system that is filled to the last block is slow, and not ours to fill */

/* The mount point that is the longest beginning of @dir names the type; of two in one place the later is on top. */
static void find_fs_type(const char *dir, char *out, size_t out_len)
{
	FILE *mounts = setmntent("/proc/self/mounts", "r");
	char real[PATH_MAX];
	struct mntent *entry;
	size_t best = 0;

	snprintf(out, out_len, "unknown");
	if (!mounts)
		return;
	if (!realpath(dir, real))
		real[0] = 0;
	while ((entry = getmntent(mounts))) {
		size_t len = strlen(entry->mnt_dir);

		if (len == 1)
			len = 0;                                /* "/" is the beginning of everything */
		if (len < best || strncmp(real, entry->mnt_dir, len) || (real[len] && real[len] != '/'))
			continue;
		best = len;
		snprintf(out, out_len, "%s", entry->mnt_type);
	}
	endmntent(mounts);
}

/* An empty file in @dir without a name. Returns its descriptor or -errno. */
static int open_nameless(const char *dir)
{
	char name[PATH_MAX];
	int fd;

	if (snprintf(name, sizeof name, "%s/iomap-bench-XXXXXX", dir) >= (int)sizeof name)
		return -ENAMETOOLONG;
	fd = mkstemp(name);
	if (fd < 0)
		return -errno;
	unlink(name);
	fcntl(fd, F_SETFD, FD_CLOEXEC);
	return fd;
}

static void set_path(struct scratch *s)
{
	snprintf(s->path, sizeof s->path, "/proc/self/fd/%d", s->fd);
}

/* Can the file be made in @dir? If so @s->fd is it, still empty. If not, @why says what is wrong. */
static bool try_dir(struct scratch *s, const char *dir, char *why, size_t why_len)
{
	struct iomap_device_info info = { .block = 0 };
	struct iomap_device *device;
	struct statvfs space;
	uint64_t free_bytes;
	int ret;

	find_fs_type(dir, s->fs_type, sizeof s->fs_type);
	s->fd = open_nameless(dir);
	if (s->fd < 0) {
		snprintf(why, why_len, "no file can be made there: %s", strerror(-s->fd));
		return false;
	}
	snprintf(s->dir, sizeof s->dir, "%s", dir);
	set_path(s);

	ret = iomap_device_open_aio(s->path, O_RDWR, 0, &device);
	if (ret) {
		snprintf(why, why_len, ret == -EOPNOTSUPP || ret == -EINVAL ?
			 "O_DIRECT does not work on this file system (%s)" : "%s: a device could not be opened: %s",
			 s->fs_type, strerror(-ret));
		goto close_fd;
	}
	iomap_device_info(device, &info);
	iomap_device_close(device);
	if (info.block > s->block) {
		snprintf(why, why_len, "O_DIRECT works in blocks of %u bytes there, not in %u", info.block, s->block);
		goto close_fd;
	}

	if (fstatvfs(s->fd, &space)) {
		snprintf(why, why_len, "its free space is unknown: %s", strerror(errno));
		goto close_fd;
	}
	free_bytes = (uint64_t)space.f_bavail * space.f_frsize;
	if (free_bytes < s->size + SPARE_BYTES) {
		snprintf(why, why_len, "%s free, but the file needs %s and %s to spare",
			 show_bytes((double)free_bytes), show_bytes((double)s->size),
			 show_bytes((double)SPARE_BYTES));
		goto close_fd;
	}
	return true;
close_fd:
	close(s->fd);
	s->fd = -1;
	return false;
}

/* Opens @s->fd in @dir, or in one of the places that come to mind. */
static int choose_dir(struct scratch *s, const char *dir)
{
	const char *places[] = { dir, "build", getenv("TMPDIR"), "/var/tmp", "." };
	char why[ARRAY_LEN(places)][256];
	unsigned nr = dir ? 1 : ARRAY_LEN(places);

	for (unsigned i = 0; i < nr; i++) {
		why[i][0] = 0;
		if (places[i] && *places[i] && try_dir(s, places[i], why[i], sizeof why[i]))
			return 0;
	}
	for (unsigned i = 0; i < nr; i++)
		if (why[i][0])
			complain("%s: %s", places[i], why[i]);
	complain(
		"choose a directory with room, on a file system that can do O_DIRECT (ext4, XFS, btrfs), by --dir DIR;"
		" or a smaller file by --size");
	return -1;
}

static int fill(struct scratch *s, void (*progress)(uint64_t done, uint64_t size))
{
	struct rng rng = { s->size };
	uint64_t done = 0;
	uint64_t *buf;
	int ret = -1;

	buf = malloc(WRITE_CHUNK);
	if (!buf) {
		complain("no memory for a buffer of 1 MiB");
		return -1;
	}
	for (size_t i = 0; i < WRITE_CHUNK / sizeof *buf; i++)
		buf[i] = rng_next(&rng);
	while (done < s->size) {
		uint64_t len = s->size - done < WRITE_CHUNK ? s->size - done : WRITE_CHUNK;
		ssize_t wrote;

		buf[0] = done;                                  /* no two chunks are alike */
		wrote = write(s->fd, buf, len);
		if (wrote < 0) {
			complain("%s: writing the file: %s; --dir DIR or --size", s->dir, strerror(errno));
			goto free_buf;
		}
		done += (uint64_t)wrote;
		if (progress && done % MIB(16) == 0)
			progress(done, s->size);
	}
	if (fsync(s->fd)) {
		complain("%s: fsync of the file: %s", s->dir, strerror(errno));
		goto free_buf;
	}
	posix_fadvise(s->fd, 0, 0, POSIX_FADV_DONTNEED);
	ret = 0;
free_buf:
	free(buf);
	return ret;
}

int scratch_create(struct scratch *s, const char *dir, uint64_t size, uint32_t block,
		   void (*progress)(uint64_t done, uint64_t size))
{
	*s = (struct scratch){ .fd = -1, .size = size, .block = block };
	if (choose_dir(s, dir))
		return -1;
	if (fill(s, progress)) {
		scratch_destroy(s);
		return -1;
	}
	return 0;
}

void scratch_destroy(struct scratch *s)
{
	if (s->fd >= 0)
		close(s->fd);
	s->fd = -1;
}
