/*
 * iomap-fio.c - an external ioengine for fio 3.33: its jobs read and write through a libiomap cache
 *
 *     fio --thread --ioengine=external:/path/to/libiomap-fio.so --iomap=memory=64m,accounting=block …
 *
 * All threads of a fio process share one cache, made by the first that needs it and synced and ended by the last. That is
 * why jobs must be threads: forked jobs would each have a cache of their own, and one would not see what the other wrote.
 *
 * No header of fio is needed. What the engine shares with fio is declared below, the few fields that it uses at their
 * offsets in version 3.33 on a 64-bit machine, all before anything that depends on how fio was configured. fio compares
 * .version with its own and refuses an engine made for another.
 *
 * Locking: the mutex for `shared`; the options are written while fio parses them, before there are threads.
 */
#include <errno.h>
#include <fcntl.h>
#include <iomap/iomap.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* --- fio 3.33's side ---------------------------------------------------------------------------------------------------- */

#define FIO_VERSION             31              /* of the engine interface */
#define FIO_SYNCIO              1               /* flag: queue() returns when the I/O is done */
#define FIO_Q_COMPLETED         0
#define FIO_OPT_STR_STORE       6
#define FIO_OPT_C_ENGINE        0x40

enum fio_ddir { DDIR_READ, DDIR_WRITE, DDIR_TRIM, DDIR_SYNC, DDIR_DATASYNC, DDIR_SYNC_FILE_RANGE };

struct thread_data;

struct fio_file {
	char before_fd[20];
	int fd;
	char before_name[16];
	char *file_name;
	char before_data[128];
	void *engine_data;
};

struct io_u {
	char before_file[32];
	struct fio_file *file;
	char before_ddir[4];
	int ddir;
	char before_offset[24];
	unsigned long long offset;
	char before_buf[24];
	void *xfer_buf;
	unsigned long long xfer_buflen;
	char before_resid[16];
	unsigned long long resid;
	unsigned error;
};

struct fio_option {
	const char *name, *lname, *alias;
	int type;
	char before_cb[76];
	int (*cb)(void *options, const char *value);
	const char *help;
	char before_category[1344];
	unsigned long long category, group;
	char rest[32];
};

struct ioengine_ops {
	void *list[2];
	const char *name;
	int version, flags;
	void *unused_dlhandle, *unused_setup;
	int (*init)(struct thread_data *);
	void *unused_post_init, *unused_prep;
	int (*queue)(struct thread_data *, struct io_u *);
	void *unused_commit, *unused_getevents, *unused_event, *unused_errdetails, *unused_cancel;
	void (*cleanup)(struct thread_data *);
	int (*open_file)(struct thread_data *, struct fio_file *);
	int (*close_file)(struct thread_data *, struct fio_file *);
	int (*invalidate)(struct thread_data *, struct fio_file *);
	void *unused_unlink_file;
	int (*get_file_size)(struct thread_data *, struct fio_file *);
	void *unused[10];
	int option_struct_size;
	struct fio_option *options;
};

#define AT(type, field, offset) \
	_Static_assert(offsetof(struct type, field) == (offset), #type "." #field " is not where fio 3.33 has it")
AT(fio_file, fd, 20);
AT(fio_file, file_name, 40);
AT(fio_file, engine_data, 176);
AT(io_u, file, 32);
AT(io_u, ddir, 44);
AT(io_u, offset, 72);
AT(io_u, xfer_buf, 104);
AT(io_u, xfer_buflen, 112);
AT(io_u, resid, 136);
AT(io_u, error, 144);
AT(fio_option, type, 24);
AT(fio_option, cb, 104);
AT(fio_option, category, 1464);
AT(ioengine_ops, name, 16);
AT(ioengine_ops, init, 48);
AT(ioengine_ops, queue, 72);
AT(ioengine_ops, cleanup, 120);
AT(ioengine_ops, open_file, 128);
AT(ioengine_ops, invalidate, 144);
AT(ioengine_ops, get_file_size, 160);
AT(ioengine_ops, options, 256);
_Static_assert(sizeof(struct fio_option) == 1512, "fio 3.33 steps through its options by 1512 bytes");
_Static_assert(sizeof(struct ioengine_ops) == 264, "fio 3.33's engines have 264 bytes");

/* what fio exports */
extern int generic_get_file_size(struct thread_data *td, struct fio_file *f);
extern size_t log_err(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* --- options: of the whole process, as the cache is -------------------------------------------------------------------- */

static struct {
	char *cache;                    /* for iomap_cache_params_parse() */
	char *block;                    /* bytes: "512", "64k" */
	char *sync;                     /* none, dsync, sync */
	char *stat;                     /* file that gets the numbers when the cache ends */
} options;

static struct iomap_cache_params params = IOMAP_CACHE_PARAMS_INIT;
static struct iomap_file_params file_params = IOMAP_FILE_PARAMS_INIT;
static int open_flags;

static int bad(const char *option, const char *value, const char *why)
{
	log_err("iomap: %s=%s: %s\n", option, value, why);
	return 1;
}

/* An option keeps its first value: a second job may repeat it, not change it. */
static int keep(char **slot, const char *option, const char *value)
{
	if (*slot && strcmp(*slot, value))
		return bad(option, value, "all jobs share one cache, and another job says otherwise");
	if (!*slot)
		*slot = strdup(value);
	return *slot ? 0 : bad(option, value, "no memory");
}

static int set_cache(void *unused, const char *value)
{
	(void)unused;
	if (iomap_cache_params_parse(&params, value))
		return bad("iomap", value, "not cache params: key=value,… as iomap_cache_params_parse() describes them");
	return keep(&options.cache, "iomap", value);
}

static int set_block(void *unused, const char *value)
{
	char *end;
	unsigned long n = strtoul(value, &end, 10);

	(void)unused;
	if (*end == 'k' && n <= 64) {
		n *= 1024;
		end++;
	}
	if (*end || n < 512 || n > 65536 || (n & (n - 1)))
		return bad("iomap_block", value, "a power of two from 512 to 64k");
	file_params.block_size = (uint32_t)n;
	return keep(&options.block, "iomap_block", value);
}

static int set_sync(void *unused, const char *value)
{
	(void)unused;
	if (strcmp(value, "none") && strcmp(value, "dsync") && strcmp(value, "sync"))
		return bad("iomap_sync", value, "none, dsync or sync");
	open_flags = !strcmp(value, "dsync") ? O_DSYNC : !strcmp(value, "sync") ? O_SYNC : 0;
	return keep(&options.sync, "iomap_sync", value);
}

static int set_stat(void *unused, const char *value)
{
	(void)unused;
	return keep(&options.stat, "iomap_stat", value);
}

static struct fio_option engine_options[] = {
	{ .name = "iomap", .lname = "libiomap cache", .type = FIO_OPT_STR_STORE, .cb = set_cache,
	  .help = "Params of the cache: memory=64m,accounting=block,…", .category = FIO_OPT_C_ENGINE },
	{ .name = "iomap_block", .lname = "libiomap block size", .type = FIO_OPT_STR_STORE, .cb = set_block,
	  .help = "Block size of the files, 512 to 64k", .category = FIO_OPT_C_ENGINE },
	{ .name = "iomap_sync", .lname = "libiomap sync", .type = FIO_OPT_STR_STORE, .cb = set_sync,
	  .help = "dsync or sync: each write is durable when it ends", .category = FIO_OPT_C_ENGINE },
	{ .name = "iomap_stat", .lname = "libiomap statistics", .type = FIO_OPT_STR_STORE, .cb = set_stat,
	  .help = "File that gets the cache's numbers at its end", .category = FIO_OPT_C_ENGINE },
	{ .name = NULL },
};

/* --- the cache that all threads share ---------------------------------------------------------------------------------- */

static struct {
	pthread_mutex_t lock;
	struct iomap_cache *cache;      /* NULL while users is 0 */
	unsigned users;                 /* threads between init() and cleanup(), and open files */
} shared = { PTHREAD_MUTEX_INITIALIZER, NULL, 0 };

static void log_line(void *unused, int level, const char *message)
{
	(void)unused;
	(void)level;
	log_err("iomap: %s\n", message);
}

/* 0, or an errno as fio wants it: positive. */
static int cache_get(void)
{
	int ret = 0;

	pthread_mutex_lock(&shared.lock);
	if (!shared.users) {
		params.log = log_line;
		ret = iomap_cache_create(&shared.cache, &params);
		if (ret)
			log_err("iomap: no cache (%s): %s\n", options.cache ? options.cache : "all defaults", strerror(-ret));
	}
	if (!ret)
		shared.users++;
	pthread_mutex_unlock(&shared.lock);
	return -ret;
}

/* All jobs have their results by now. What is left to tell that data was lost is fio's exit status. */
static void exit_with_error(void)
{
	fflush(NULL);
	_exit(1);
}

/* Writes the cache's numbers to the file that iomap_stat names. */
static void write_stat(void)
{
	FILE *out = fopen(options.stat, "w");
	int ret = out ? iomap_stat_print(shared.cache, out, IOMAP_STAT_TEXT) : -errno;

	if (out && fclose(out))
		ret = -errno;
	if (ret)
		log_err("iomap: %s: %s\n", options.stat, strerror(-ret));
}

/* The last one writes what is dirty. */
static void cache_put(void)
{
	int ret;

	pthread_mutex_lock(&shared.lock);
	if (!--shared.users) {
		ret = iomap_cache_sync(shared.cache);
		if (options.stat)
			write_stat();
		if (!ret)
			ret = iomap_cache_destroy(shared.cache);
		if (ret) {
			log_err("iomap: data was lost at the end: %s\n", strerror(-ret));
			iomap_cache_abandon(shared.cache);
			atexit(exit_with_error);
		}
		shared.cache = NULL;
	}
	pthread_mutex_unlock(&shared.lock);
}

/* --- the engine --------------------------------------------------------------------------------------------------------- */

static int engine_init(struct thread_data *td)
{
	(void)td;
	if (gettid() == getpid()) {
		log_err("iomap: jobs must share one cache: run fio with --thread\n");
		return EINVAL;
	}
	return cache_get();
}

static void engine_cleanup(struct thread_data *td)
{
	(void)td;
	cache_put();
}

/*
 * An error of open_file() is lost in fio, where a job then ends early and well. So it waits, in place of the handle, for the
 * first I/O to report it.
 */
static void *failed(int error)
{
	return (void *)(intptr_t)error;
}

static int error_of(const void *handle)
{
	intptr_t value = (intptr_t)handle;

	return value < 0 && value > -4096 ? (int)value : 0;
}

/* fio does not say in a place to rely on whether the job writes: opened for writing where that is allowed. */
static int engine_open(struct thread_data *td, struct fio_file *f)
{
	struct iomap_file *file = NULL;
	int ret = -cache_get();

	(void)td;
	if (!ret) {
		ret = iomap_open_with(shared.cache, f->file_name, O_RDWR | O_CREAT | open_flags, 0644, &file_params, &file);
		if (ret == -EACCES || ret == -EROFS)
			ret = iomap_open_with(shared.cache, f->file_name, O_RDONLY, 0, &file_params, &file);
		if (ret)
			cache_put();
	}
	if (ret)
		log_err("iomap: %s: %s\n", f->file_name, strerror(-ret));
	f->engine_data = ret ? failed(ret) : file;
	f->fd = ret ? -1 : iomap_fd(file);      /* fio asks a block device for its size */
	return 0;
}

static int engine_close(struct thread_data *td, struct fio_file *f)
{
	int ret = error_of(f->engine_data);

	(void)td;
	if (!ret) {
		ret = iomap_close(f->engine_data);
		if (ret)
			log_err("iomap: %s: %s\n", f->file_name, strerror(-ret));
		cache_put();
	}
	f->engine_data = NULL;
	f->fd = -1;
	return -ret;
}

static int engine_invalidate(struct thread_data *td, struct fio_file *f)
{
	(void)td;
	if (!error_of(f->engine_data))
		iomap_fadvise(f->engine_data, 0, 0, POSIX_FADV_DONTNEED);
	return 0;
}

static int engine_queue(struct thread_data *td, struct io_u *io_u)
{
	struct iomap_file *file = io_u->file->engine_data;
	ssize_t ret = error_of(file);

	(void)td;
	switch (ret ? -1 : io_u->ddir) {
	case -1:
		break;
	case DDIR_READ:
		ret = iomap_pread(file, io_u->xfer_buf, io_u->xfer_buflen, (off_t)io_u->offset);
		break;
	case DDIR_WRITE:
		ret = iomap_pwrite(file, io_u->xfer_buf, io_u->xfer_buflen, (off_t)io_u->offset);
		break;
	case DDIR_SYNC:
		ret = iomap_fsync(file);
		break;
	case DDIR_DATASYNC:
	case DDIR_SYNC_FILE_RANGE:      /* the range is fio's own to know: all of the file, and durable */
		ret = iomap_fdatasync(file);
		break;
	case DDIR_TRIM:
		ret = iomap_fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)io_u->offset, (off_t)io_u->xfer_buflen);
		break;
	default:
		ret = -EOPNOTSUPP;
	}
	if (ret < 0)
		io_u->error = (unsigned)-ret;
	else if (io_u->ddir == DDIR_READ || io_u->ddir == DDIR_WRITE)
		io_u->resid = io_u->xfer_buflen - (unsigned long long)ret;      /* a rest comes again */
	return FIO_Q_COMPLETED;
}

/* fio links it into a list of its own: not const. */
__attribute__((visibility("default"))) extern struct ioengine_ops ioengine;

struct ioengine_ops ioengine = {
	.name = "iomap",
	.version = FIO_VERSION,
	.flags = FIO_SYNCIO,
	.init = engine_init,
	.queue = engine_queue,
	.cleanup = engine_cleanup,
	.open_file = engine_open,
	.close_file = engine_close,
	.invalidate = engine_invalidate,
	.get_file_size = generic_get_file_size,
	.option_struct_size = sizeof(void *),   /* its first word is fio's */
	.options = engine_options,
};
