/*
 * disk.c - files behind the system calls: what is open, how large it is, what is safe
 *
 * Plays the kernel between device-aio.c and a disk with a volatile cache. Contents are in disk-store.c, reads and
 * writes in disk-request.c; here are the files, their descriptors, and all calls that are not a transfer.
 *
 * ftruncate() has the file for itself, as under the kernel's inode lock: it waits for the requests in flight, and
 * none begins meanwhile. A flush takes its time and covers what had ended when it was called; what ends during it
 * may or may not be covered on real disks, and here it never is. A directory is always safe.
 *
 * Invariants: everything hangs off *disk, which disk_start() makes anew and the end of the world drops.
 * Locking:    none: threads switch only at sim_point() and where they sleep. So each call begins with a point, and
 *             what follows is one step up to the next point or sleep.
 * Kernel:     ext4 and xfs. Differs: no permissions, no directories, no unlink.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE         /* O_DIRECT, SEEK_DATA, FALLOC_FL_KEEP_SIZE */
#endif
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>
#include "disk-file.h"
#include "sched.h"
#include "util.h"

#define DEVICE          0x51
#define INODE_FIRST     11
#define UNITS_MAX       (UINT64_C(1) << 18)     /* of a disk without a limit: more is a mistake, not a test */

enum { STREAM_TIMING = 0x6401, STREAM_FAULTS };

struct disk *disk;

/* --- the world's side ------------------------------------------------------------------------------------- */

void disk_start(const struct sim_disk_params *p, uint64_t seed)
{
	disk = disk_alloc(sizeof(*disk));
	disk->params = *p;
	if (!is_pow2(p->dio_align) || p->dio_align < SIM_SECTOR || p->dio_align > 4096)
		sim_fail("disk: blocks of %u bytes", p->dio_align);
	sim_rng_seed(&disk->timing, seed, STREAM_TIMING);
	sim_rng_seed(&disk->faults, seed, STREAM_FAULTS);
	request_start_workers();
}

static struct disk_file *file_find(const char *path)
{
	for (unsigned i = 0; i < disk->nr_files; i++)
		if (!strcmp(disk->files[i]->path, path))
			return disk->files[i];
	return NULL;
}

static struct disk_file *file_make(const char *path, mode_t mode)
{
	size_t len = strlen(path) + 1;
	struct disk_file *f = disk_alloc(sizeof(*f));

	if (disk->nr_files == DISK_FILES)
		sim_fail("disk: too many files");
	f->nr = disk->nr_files;
	f->path = memcpy(disk_alloc(len), path, len);
	f->mode = mode & 07777;
	store_init(&f->store, &disk->pool);
	disk->files[disk->nr_files++] = f;
	return f;
}

static struct disk_file *file_nr(unsigned nr)
{
	if (nr >= disk->nr_files)
		sim_fail("disk: there is no file %u", nr);
	return disk->files[nr];
}

int disk_file(const char *path)
{
	const struct disk_file *f = file_find(path);

	return f ? (int)f->nr : -ENOENT;
}

uint64_t disk_size(unsigned file) { return file_nr(file)->store.size; }

void disk_peek(unsigned file, uint64_t pos, void *buf, uint64_t len)
{
	struct disk_store *s = &file_nr(file)->store;
	uint64_t inside = s->size > pos ? min_u64(len, s->size - pos) : 0;

	store_read(s, pos, buf, inside);
	memset((char *)buf + inside, 0, len - inside);
}

void disk_poke(unsigned file, uint64_t pos, const void *data, uint64_t len)
{
	struct disk_store *s = &file_nr(file)->store;
	const uint64_t id = ++disk->last_id;

	for (uint64_t done = 0; done < len; done += SIM_SECTOR)
		store_write(s, pos + done, (const char *)data + done, SIM_SECTOR, id);
}

unsigned disk_create(const char *path, const void *data, uint64_t len)
{
	if (file_find(path))
		sim_fail("disk: %s is there already", path);

	struct disk_file *f = file_make(path, 0644);
	const uint64_t id = ++disk->last_id;

	for (uint64_t pos = 0; data && pos < len; pos += SIM_SECTOR)
		store_write(&f->store, pos, (const char *)data + pos, (unsigned)min_u64(SIM_SECTOR, len - pos), id);
	store_mark_data(&f->store, 0, len);
	store_grow(&f->store, len, id);
	store_flush(&f->store, &(struct disk_cover){ .before = id + 1 });
	return f->nr;
}

void disk_heal(void)
{
	struct sim_disk_params *p = &disk->params;

	p->short_io = p->eagain = p->read_eio = p->write_eio = p->flush_eio = p->enospc = 0;
	p->bad_len = p->dead_from_ns = p->capacity = 0;
}

bool disk_idle(void) { return disk->nr_requests == 0; }

uint64_t disk_image(unsigned file, enum disk_crash how, struct sim_rng *r, void *buf, uint64_t max)
{
	return store_image(&file_nr(file)->store, how, r, buf, max);
}

void disk_stats(struct sim_disk_stats *out) { *out = disk->stats; }

/* --- shared with requests --------------------------------------------------------------------------------- */

struct disk_open *disk_open_of(int fd)
{
	return fd >= 0 && fd < DISK_FDS ? disk->fds[fd] : NULL;
}

bool disk_may_read(const struct disk_open *o) { return (o->flags & O_ACCMODE) != O_WRONLY; }
bool disk_may_write(const struct disk_open *o) { return (o->flags & O_ACCMODE) != O_RDONLY; }
bool disk_is_dead(void) { return disk->params.dead_from_ns && sim_now() >= disk->params.dead_from_ns; }

void disk_enter(struct disk_file *f)
{
	while (f->truncating)
		sim_wait(&f->turn, "a truncation of the file", f);
}

void disk_grown(const struct disk_file *f, uint64_t from)
{
	if (f->store.size > from && disk->params.grown)
		disk->params.grown(f->nr, from, f->store.size);
}

bool disk_no_space(uint64_t units)
{
	const struct sim_disk_params *p = &disk->params;
	uint64_t most = p->capacity ? p->capacity / DISK_UNIT : UNITS_MAX;
	bool chance = sim_chance(&disk->faults, p->enospc, 1024);

	if (!units)
		return false;

	bool fault = sim_fault(SIM_FAULT_SPACE);

	disk->stats.faults += fault || chance;
	return fault || chance || units > most || disk->pool.allocated > most - units;
}

/* --- descriptors ------------------------------------------------------------------------------------------ */

static int fd_for(struct disk_open *o)
{
	for (int fd = DISK_FD_FIRST; fd < DISK_FDS; fd++) {
		if (!disk->fds[fd]) {
			disk->fds[fd] = o;
			o->refs++;
			return fd;
		}
	}
	return -EMFILE;
}

/* Has the file for itself until leave_alone(). */
static void enter_alone(struct disk_file *f)
{
	disk_enter(f);
	f->truncating = true;
	while (f->requests)
		sim_wait(&f->turn, "requests in flight, to truncate", f);
}

static void leave_alone(struct disk_file *f)
{
	f->truncating = false;
	sim_wake_all(&f->turn);
}

static void truncate_alone(struct disk_file *f, uint64_t size)
{
	uint64_t old;

	enter_alone(f);
	old = f->store.size;
	sim_trace("disk: truncate f%u %llu -> %llu", f->nr, (unsigned long long)old, (unsigned long long)size);
	store_truncate(&f->store, size, ++disk->last_id);
	disk_grown(f, old);
	leave_alone(f);
}

static int open_file(struct disk_file *f, int oflags)
{
	struct disk_open *o = disk_alloc(sizeof(*o));

	o->file = f;
	o->flags = oflags & ~(O_CREAT | O_EXCL | O_TRUNC | O_CLOEXEC);

	int fd = fd_for(o);

	if (fd < 0)
		heap_free(o);
	else if ((oflags & O_TRUNC) && disk_may_write(o))
		truncate_alone(f, 0);
	return fd;
}

int plat_open(const char *path, int oflags, mode_t mode)
{
	might_sleep();
	sim_point();

	struct disk_file *f = file_find(path);

	if (f && (oflags & O_CREAT) && (oflags & O_EXCL))
		return -EEXIST;
	if (oflags & O_DIRECTORY)
		return f ? -ENOTDIR : -ENOENT;
	if (!f && (!(oflags & O_CREAT) || !*path))
		return -ENOENT;
	return open_file(f ? f : file_make(path, mode), oflags);
}

int plat_reopen(int fd, int oflags)
{
	might_sleep();
	sim_point();

	const struct disk_open *o = disk_open_of(fd);

	return o ? open_file(o->file, oflags) : -ENOENT;
}

int plat_dup(int fd)
{
	sim_point();

	struct disk_open *o = disk_open_of(fd);

	return o ? fd_for(o) : -EBADF;
}

static void drop_byte_lock(struct disk_byte_lock **link)
{
	struct disk_byte_lock *l = *link;

	*link = l->next;
	heap_free(l);
}

int plat_close(int fd)
{
	might_sleep();
	sim_point();

	struct disk_open *o = disk_open_of(fd);

	if (!o)
		return -EBADF;
	disk->fds[fd] = NULL;
	if (--o->refs)
		return 0;
	for (struct disk_byte_lock **link = &o->file->locks; *link; ) {
		if ((*link)->owner == o)
			drop_byte_lock(link);
		else
			link = &(*link)->next;
	}
	heap_free(o);
	return 0;
}

static void fill_stat(const struct disk_file *f, struct stat *st)
{
	memset(st, 0, sizeof(*st));
	st->st_dev = DEVICE;
	st->st_ino = INODE_FIRST + f->nr;
	st->st_mode = S_IFREG | f->mode;
	st->st_nlink = 1;
	st->st_size = (off_t)f->store.size;
	st->st_blksize = 4096;
	st->st_blocks = (blkcnt_t)(store_allocated(&f->store) / 512);
}

int plat_fstat(int fd, struct stat *st)
{
	might_sleep();
	sim_point();

	const struct disk_open *o = disk_open_of(fd);

	if (!o)
		return -EBADF;
	fill_stat(o->file, st);
	return 0;
}

int plat_stat(const char *path, struct stat *st)
{
	might_sleep();
	sim_point();

	const struct disk_file *f = file_find(path);

	if (!f)
		return -ENOENT;
	fill_stat(f, st);
	return 0;
}

int plat_fd_flags(int fd)
{
	sim_point();

	const struct disk_open *o = disk_open_of(fd);

	return o ? o->flags : -EBADF;
}

int plat_dio_align(int fd, struct plat_dio_align *out)
{
	might_sleep();
	sim_point();
	*out = (struct plat_dio_align){ 0, 0 };
	if (!disk_open_of(fd))
		return -EBADF;
	*out = (struct plat_dio_align){ .mem = disk->params.dio_align, .offset = disk->params.dio_align };
	return 0;
}

int plat_blockdev_size(int fd, uint64_t *bytes)
{
	(void)bytes;
	might_sleep();
	sim_point();
	return disk_open_of(fd) ? -ENOTTY : -EBADF;
}

static struct disk_byte_lock **byte_lock_of(struct disk_file *f, const struct disk_open *owner, uint64_t pos)
{
	struct disk_byte_lock **link = &f->locks;

	while (*link && ((*link)->owner != owner || (*link)->pos != pos))
		link = &(*link)->next;
	return link;
}

int plat_lock_byte(int fd, uint64_t pos, bool exclusive)
{
	might_sleep();
	sim_point();

	const struct disk_open *o = disk_open_of(fd);

	if (!o || !(exclusive ? disk_may_write(o) : disk_may_read(o)))
		return -EBADF;
	for (const struct disk_byte_lock *l = o->file->locks; l; l = l->next)
		if (l->owner != o && l->pos == pos && (l->exclusive || exclusive))
			return -EBUSY;

	struct disk_byte_lock **mine = byte_lock_of(o->file, o, pos);

	if (!*mine) {
		*mine = disk_alloc(sizeof(**mine));
		(*mine)->owner = o;
		(*mine)->pos = pos;
	}
	(*mine)->exclusive = exclusive;
	return 0;
}

int plat_unlock_byte(int fd, uint64_t pos)
{
	might_sleep();
	sim_point();

	const struct disk_open *o = disk_open_of(fd);

	if (!o)
		return -EBADF;

	struct disk_byte_lock **mine = byte_lock_of(o->file, o, pos);

	if (*mine)
		drop_byte_lock(mine);
	return 0;
}

/* --- transfers in the caller's thread --------------------------------------------------------------------- */

static ssize_t transfer_now(const struct disk_open *o, bool write, void *buf, size_t len, uint64_t pos)
{
	const struct iovec v = { .iov_base = buf, .iov_len = len };
	struct disk_request r = {
		.file = o->file, .write = write, .direct = o->flags & O_DIRECT, .pos = pos, .iov = &v, .iovcnt = 1,
	};

	request_begin(&r);

	int64_t result = request_run(&r);

	request_end(&r, result);
	sim_point();
	return (ssize_t)result;
}

ssize_t plat_pread(int fd, void *buf, size_t len, uint64_t pos)
{
	might_sleep();
	sim_point();

	const struct disk_open *o = disk_open_of(fd);

	return o && disk_may_read(o) ? transfer_now(o, false, buf, len, pos) : -EBADF;
}

ssize_t plat_pwrite(int fd, const void *buf, size_t len, uint64_t pos)
{
	might_sleep();
	sim_point();

	const struct disk_open *o = disk_open_of(fd);

	if (!o || !disk_may_write(o))
		return -EBADF;
	if (o->flags & O_APPEND)
		pos = o->file->store.size;
	return transfer_now(o, true, (void *)(uintptr_t)buf, len, pos);
}

/* --- size and space --------------------------------------------------------------------------------------- */

int plat_ftruncate(int fd, uint64_t size)
{
	might_sleep();
	sim_point();

	const struct disk_open *o = disk_open_of(fd);

	if (!o)
		return -EBADF;
	if (size > INT64_MAX || !disk_may_write(o))
		return -EINVAL;
	truncate_alone(o->file, size);
	sim_point();
	return 0;
}

static bool known_mode(int mode)
{
	return !(mode & ~FALLOC_FL_KEEP_SIZE) || (mode & ~FALLOC_FL_KEEP_SIZE) == FALLOC_FL_ZERO_RANGE ||
	       mode == (FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE);
}

static void grow(struct disk_file *f, uint64_t size)
{
	uint64_t old = f->store.size;

	store_grow(&f->store, size, ++disk->last_id);
	disk_grown(f, old);
}

/* Punch and zero range: as under the kernel's inode lock, after the requests in flight. */
static int clear_alone(struct disk_file *f, int mode, uint64_t pos, uint64_t len)
{
	struct disk_store *s = &f->store;
	bool punch = mode & FALLOC_FL_PUNCH_HOLE, full, failed;

	enter_alone(f);
	failed = sim_chance(&disk->faults, disk->params.write_eio, 1024) || disk_is_dead();
	disk->stats.faults += failed;
	full = !punch && disk_no_space(store_missing(s, pos, len));
	sim_trace("disk: %s f%u %llu+%llu%s", punch ? "punch" : "zero range", f->nr, (unsigned long long)pos, (unsigned long long)len,
		  failed ? ": fails" : full ? ": no space" : "");
	if (!full && !failed) {
		if (!punch)
			store_allocate(s, pos, len);
		store_clear(s, pos, len, punch, ++disk->last_id);
		if (!(mode & FALLOC_FL_KEEP_SIZE))
			grow(f, pos + len);
	}
	leave_alone(f);
	sim_point();
	return failed ? -EIO : full ? -ENOSPC : 0;
}

int plat_fallocate(int fd, int mode, uint64_t pos, uint64_t len)
{
	might_sleep();
	sim_point();

	const struct disk_open *o = disk_open_of(fd);

	if (!o || !disk_may_write(o))
		return -EBADF;
	if (!len || pos > INT64_MAX || len > INT64_MAX)
		return -EINVAL;
	if (len > INT64_MAX - pos)
		return -EFBIG;
	if (!known_mode(mode) || !disk->params.can_allocate)
		return -EOPNOTSUPP;

	struct disk_file *f = o->file;

	if (mode & ~FALLOC_FL_KEEP_SIZE)
		return clear_alone(f, mode, pos, len);

	struct disk_store *s = &f->store;

	disk_enter(f);

	bool full = disk_no_space(store_missing(s, pos, len));

	sim_trace("disk: allocate f%u %llu+%llu%s", f->nr, (unsigned long long)pos, (unsigned long long)len,
		  full ? ": no space" : "");
	if (full)
		return -ENOSPC;
	store_allocate(s, pos, len);
	if (!(mode & FALLOC_FL_KEEP_SIZE))
		grow(f, pos + len);
	sim_point();
	return 0;
}

int plat_seek(int fd, uint64_t pos, int whence, uint64_t *out)
{
	might_sleep();
	sim_point();

	const struct disk_open *o = disk_open_of(fd);

	if (!o)
		return -EBADF;
	if (whence != SEEK_DATA && whence != SEEK_HOLE)
		return -EINVAL;
	return store_seek(&o->file->store, pos, whence == SEEK_DATA, out) ? 0 : -ENXIO;
}

/* --- flush ------------------------------------------------------------------------------------------------ */

/* All that has ended on @f until now. Free what is in it by heap_free(). */
static struct disk_cover cover_now(const struct disk_file *f)
{
	struct disk_cover c = { .before = disk->last_id + 1 };
	uint64_t *ids;

	for (const struct disk_request *r = f->requests; r; r = r->next)
		c.nr_in_flight += r->id != 0;
	ids = disk_alloc((c.nr_in_flight + 1) * sizeof(*ids));
	c.in_flight = ids;
	for (const struct disk_request *r = f->requests; r; r = r->next)
		if (r->id)
			*ids++ = r->id;
	return c;
}

static int flush(int fd)
{
	const struct sim_disk_params *p = &disk->params;

	might_sleep();
	sim_point();

	const struct disk_open *o = disk_open_of(fd);

	if (!o)
		return -EBADF;

	struct disk_file *f = o->file;
	struct disk_cover c = cover_now(f);
	bool fault = sim_fault(SIM_FAULT_FLUSH);
	bool chance = sim_chance(&disk->faults, p->flush_eio, 1024);
	uint64_t ns = p->latency_ns + sim_below(&disk->timing, p->latency_spread_ns + 1);

	disk->stats.flushes++;
	sim_trace("disk: flush f%u begins", f->nr);
	sim_sleep(ns);

	int ret = fault || chance || disk_is_dead() ? -EIO : 0;

	if (ret) {
		disk->stats.faults++;
		store_flush_failed(&f->store, &c);
	} else {
		store_flush(&f->store, &c);
	}
	heap_free((void *)(uintptr_t)c.in_flight);
	sim_trace("disk: flush f%u -> %d", f->nr, ret);
	sim_hash(f->nr);
	sim_hash((uint64_t)(int64_t)ret);
	sim_point();
	return ret;
}

int plat_fdatasync(int fd) { return flush(fd); }
int plat_fsync(int fd) { return flush(fd); }

int plat_fsync_dir_of(const char *path)
{
	(void)path;
	might_sleep();
	sim_point();
	return 0;
}
