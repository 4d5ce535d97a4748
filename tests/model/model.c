/*
 * model.c - random operations on a file, against a byte array
 *
 * A run is one seed: it picks a device, a block size, an accounting mode, limits, a set of operations that are left out,
 * and a list of operations. The list is carried out on a file and on an array of bytes; after each step the sizes are
 * compared and iomap_cache_check() is called, and what was read, written or cut is read back. On the device that can lose
 * its write cache there is a second model: which contents each sector, and which size the file, may have after a crash.
 *
 * Every run is a process of its own, so that a crash, an assertion or a hang is a failed run as well. A run that fails is
 * shortened by leaving out operations for as long as it still fails; what is left is printed.
 *
 *   --seed N      the first seed (else drawn from the clock; printed)
 *   --run I       only run I of that seed
 *   --ops N       about so many operations in all
 *   --seconds N   for so long
 *   --long        an hour
 *   --keep        do not shorten
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <iomap/iomap.h>
#include "extfs.h"
#include "hold-device.h"
#include "run.h"

enum kind {
	OP_WRITE, OP_WRITEV, OP_DSYNC, OP_APPEND, OP_NOWAIT_WRITE,
	OP_READ, OP_READV, OP_NOWAIT_READ, OP_VERIFY,
	OP_TRUNCATE, OP_FSYNC, OP_FDATASYNC, OP_FADVISE, OP_DROP, OP_REOPEN, OP_SECOND, OP_SET, OP_SYNC, OP_CRASH,
	OP_PUNCH, OP_ZERO, OP_ALLOCATE, OP_SEEK, OP_SYNC_RANGE,
	OP_CLONE, OP_SNAPSHOT, OP_RESTORE,
	NR_KINDS
};

static const struct {
	const char *name;
	unsigned weight;        /* how often, among the others */
} kinds[NR_KINDS] = {
	[OP_WRITE] = { "write", 24 }, [OP_WRITEV] = { "writev", 8 }, [OP_DSYNC] = { "dsync-write", 2 },
	[OP_APPEND] = { "append", 6 }, [OP_NOWAIT_WRITE] = { "nowait-write", 3 },
	[OP_READ] = { "read", 16 }, [OP_READV] = { "readv", 5 }, [OP_NOWAIT_READ] = { "nowait-read", 3 },
	[OP_VERIFY] = { "verify", 1 }, [OP_TRUNCATE] = { "truncate", 6 }, [OP_FSYNC] = { "fsync", 2 },
	[OP_FDATASYNC] = { "fdatasync", 2 }, [OP_FADVISE] = { "fadvise", 6 }, [OP_DROP] = { "drop", 3 },
	[OP_REOPEN] = { "reopen", 3 }, [OP_SECOND] = { "second", 2 }, [OP_SET] = { "set", 2 }, [OP_SYNC] = { "sync", 1 },
	[OP_CRASH] = { "crash", 1 }, [OP_PUNCH] = { "punch", 6 }, [OP_ZERO] = { "zero", 4 }, [OP_ALLOCATE] = { "allocate", 2 },
	[OP_SEEK] = { "seek", 4 }, [OP_SYNC_RANGE] = { "sync-range", 3 },
	[OP_CLONE] = { "clone", 2 }, [OP_SNAPSHOT] = { "snapshot", 4 }, [OP_RESTORE] = { "restore", 1 },
};

struct op {
	unsigned kind;
	unsigned slot;          /* which handle */
	unsigned arg;           /* pieces, advice, tunable, flags: as the kind needs it */
	unsigned seed;          /* of contents, 16 bits */
	int flags;              /* IOMAP_RWF_DIRECT, _WRITETHROUGH */
	unsigned skew;          /* the memory begins so far behind a page */
	uint64_t pos, len;
};

enum device { MEM, AIO, HOLD, EXTFS, NR_DEVICES };
static const char *const device_names[NR_DEVICES] = { "mem", "aio", "hold", "extfs" };

struct config {
	enum device device;
	unsigned block;
	enum iomap_accounting accounting;
	struct iomap_cache_params cache;
	uint64_t cap;           /* positions are below it */
	bool dontcache;         /* half of the reads and writes are */
	bool read_back;         /* after every step, not only where asked for */
	bool inline_done, shuffle;
	bool unstable;          /* contents may change in flight */
	uint64_t latency_ns;
	struct extfs_params extfs;
	unsigned left_out;      /* 1 << kind */
	unsigned nr_ops;
};

enum {
	SECTOR = 512,
	LEN_MAX = 300 << 10,
	POOL = 48 << 10,        /* versions of sectors since the last fsync */
	EXIT_SKIPPED = 77,
};
#define MODEL_BYTES     (8U << 20)
#define NR_SECTORS      (MODEL_BYTES / SECTOR)
#define EXTFS_BYTES     (4U * MODEL_BYTES)      /* file, snapshot, copies of either */

/* What a run tells its parent. */
static struct shared {
	unsigned op;            /* that is being carried out; nr_ops: after the last */
	char text[600];
} *shared;

static struct config cfg;
static struct op *ops;
static unsigned nr_ops;

/* --- generating -------------------------------------------------------------------------------------------------- */

static uint64_t pick_len(uint64_t *r)
{
	uint64_t len;

	switch (t_random_below(r, 8)) {
	case 0: len = t_random_below(r, 17); break;
	case 1: case 2: len = t_random_below(r, 4097); break;
	case 3: len = cfg.block * (1 + t_random_below(r, 4)); break;
	case 4: len = 4096 * t_random_below(r, 17); break;
	case 5: case 6: len = t_random_below(r, 64 << 10); break;
	default: len = t_random_below(r, LEN_MAX + 1);
	}
	if (cfg.device == EXTFS && len > cfg.cap)
		len %= cfg.cap;
	return len > LEN_MAX ? LEN_MAX : len;
}

static uint64_t pick_pos(uint64_t *r, uint64_t size)
{
	static const unsigned grains[] = { 512, 4096, 16384, 65536 };
	uint64_t pos = t_random_below(r, cfg.cap), grain;

	switch (t_random_below(r, 8)) {
	case 0:
		return pos / cfg.block * cfg.block;
	case 1: case 2:
		grain = grains[t_random_below(r, 4)];
		pos = pos / grain * grain + t_random_below(r, 5);
		return pos >= 2 ? pos - 2 : pos;
	case 3: case 4:                 /* around the end of the file */
		pos = size + t_random_below(r, 2 * 4096);
		return pos > 4096 ? pos - 4096 : 0;
	case 5:
		return size;
	case 6:                         /* one small region, again and again */
		return pos % (cfg.cap < 65536 ? cfg.cap : 65536);
	default:
		return pos;
	}
}

static const enum iomap_tunable tunables[] = {
	IOMAP_TUNE_DIRTY_BYTES, IOMAP_TUNE_DIRTY_BACKGROUND_BYTES, IOMAP_TUNE_DIRTY_EXPIRE_MS,
	IOMAP_TUNE_DIRTY_WRITEBACK_MS, IOMAP_TUNE_READAHEAD_BYTES, IOMAP_TUNE_MAX_FOLIO_BYTES, IOMAP_TUNE_DONTCACHE,
};

static uint64_t pick_setting(enum iomap_tunable which, uint64_t *r)
{
	switch (which) {
	case IOMAP_TUNE_DIRTY_BYTES: return t_random_below(r, 8) ? (128 << 10) << t_random_below(r, 3) : 0;
	case IOMAP_TUNE_DIRTY_BACKGROUND_BYTES: return t_random_below(r, 8) ? (16 << 10) << t_random_below(r, 5) : 0;
	case IOMAP_TUNE_DIRTY_EXPIRE_MS: return t_random_below(r, 100);
	case IOMAP_TUNE_DIRTY_WRITEBACK_MS: return t_random_below(r, 2) ? IOMAP_NEVER : t_random_below(r, 50);
	case IOMAP_TUNE_READAHEAD_BYTES:
		return t_random_below(r, 4) ? 4096U << t_random_below(r, 8) : IOMAP_READAHEAD_OFF;
	case IOMAP_TUNE_DONTCACHE: return t_random_below(r, 3);
	default: return 4096 << t_random_below(r, 5);
	}
}

static unsigned pick_kind(uint64_t *r)
{
	unsigned total = 0, at;

	for (unsigned i = 0; i < NR_KINDS; i++)
		total += cfg.left_out & 1U << i ? 0 : kinds[i].weight;
	at = (unsigned)t_random_below(r, total);
	for (unsigned i = 0; ; i++) {
		unsigned weight = cfg.left_out & 1U << i ? 0 : kinds[i].weight;

		if (at < weight)
			return i;
		at -= weight;
	}
}

static void make_ops(uint64_t *r)
{
	uint64_t size = 0;      /* roughly what it will be */

	nr_ops = cfg.nr_ops;
	ops = calloc(nr_ops, sizeof(*ops));
	if (!ops)
		abort();
	for (unsigned i = 0; i < nr_ops; i++) {
		struct op *op = &ops[i];

		op->kind = pick_kind(r);
		op->slot = (unsigned)t_random_below(r, 2);
		op->seed = (i + 1) & 0xffff;
		op->arg = (unsigned)t_random(r);
		op->pos = pick_pos(r, size);
		op->len = pick_len(r);
		switch (op->kind) {
		case OP_WRITE: case OP_WRITEV: case OP_DSYNC: case OP_NOWAIT_WRITE:
			if (op->len && op->pos + op->len > size)
				size = op->pos + op->len;
			break;
		case OP_APPEND:
			size += op->len;
			break;
		case OP_ZERO: case OP_ALLOCATE:
			if (!(op->arg & 1) && op->len && op->pos + op->len > size)
				size = op->pos + op->len;
			break;
		case OP_TRUNCATE:
			if (op->arg & 1 && size)
				op->pos = t_random_below(r, size);
			size = op->pos;
			break;
		case OP_SET:
			op->arg = (unsigned)(op->arg % (sizeof(tunables) / sizeof(tunables[0])));
			op->pos = pick_setting(tunables[op->arg], r);
			break;
		default:
			break;
		}
	}
}

static void make_extfs_config(uint64_t *r)
{
	static const unsigned ways[] = { 0, 0, EXTFS_EARLY, EXTFS_EARLY_NEW, EXTFS_ALWAYS_COW };

	cfg.extfs = (struct extfs_params){
		.size = EXTFS_BYTES, .block = cfg.block, .flags = ways[t_random_below(r, 5)], .seed = t_random(r),
		.inline_max = t_random_below(r, 2) ? (uint32_t)t_random_below(r, cfg.block) : 0,
		.extent_max = (uint32_t)(t_random_below(r, 2) ? 1 + t_random_below(r, 30) : 0),
		.boundary = (uint32_t)(t_random_below(r, 3) ? 0 : 2 + t_random_below(r, 30)),
	};
	if (cfg.extfs.inline_max && t_random_below(r, 2))
		cfg.cap = 2 * cfg.block;        /* small enough to be inline now and then */
	cfg.extfs.flags |= t_random_below(r, 2) ? EXTFS_CHOP : 0;
	cfg.extfs.flags |= t_random_below(r, 2) ? EXTFS_COW_UNWRITTEN : 0;
}

/* Some reads and writes go around the cache, or through it at once. From numbers of its own. */
static void make_around(uint64_t *r)
{
	uint64_t share = 1 + t_random_below(r, 6);

	cfg.unstable = t_random_below(r, 5) == 0;
	if (t_random_below(r, 3) == 0)
		return;
	for (unsigned i = 0; i < nr_ops; i++) {
		struct op *op = &ops[i];
		bool reads = op->kind == OP_READ || op->kind == OP_READV || op->kind == OP_NOWAIT_READ;

		if (op->kind > OP_NOWAIT_READ || t_random_below(r, share))
			continue;
		op->flags = reads || op->kind == OP_NOWAIT_WRITE || t_random_below(r, 3) ? IOMAP_RWF_DIRECT : IOMAP_RWF_WRITETHROUGH;
		if (t_random_below(r, 2)) {
			uint64_t unit = t_random_below(r, 2) ? SECTOR : cfg.block;

			op->pos = op->pos / unit * unit;
			op->len = op->len / unit * unit;
		} else if (t_random_below(r, 2)) {
			op->skew = 1 + (unsigned)t_random_below(r, 600);
		}
	}
}

static void make_config(enum device device, unsigned block, enum iomap_accounting accounting, unsigned ops_wanted, uint64_t *r)
{
	uint64_t around;
	static const uint64_t caps[] = { 96 << 10, 512 << 10, 1 << 20, 3 << 20, 6 << 20 };

	memset(&cfg, 0, sizeof(cfg));
	cfg.device = device;
	cfg.block = block;
	cfg.accounting = accounting;
	cfg.nr_ops = ops_wanted;
	cfg.cap = caps[t_random_below(r, device == AIO ? 4 : 5)];
	cfg.read_back = t_random_below(r, 2);
	cfg.inline_done = t_random_below(r, 4) == 0;
	cfg.shuffle = t_random_below(r, 2);
	cfg.latency_ns = t_random_below(r, 3) ? 0 : t_random_below(r, 100000);
	cfg.cache = (struct iomap_cache_params)IOMAP_CACHE_PARAMS_INIT;
	cfg.cache.memory_bytes = 1048576ULL << t_random_below(r, 3);
	cfg.cache.max_folio_bytes = 4096ULL << t_random_below(r, 7);
	cfg.cache.accounting = accounting;
	cfg.cache.error_policy = t_random_below(r, 4) ? IOMAP_ERROR_KEEP_DIRTY : IOMAP_ERROR_DROP;
	if (t_random_below(r, 2))
		cfg.cache.dirty_bytes = pick_setting(IOMAP_TUNE_DIRTY_BYTES, r);
	if (t_random_below(r, 2))
		cfg.cache.dirty_background_bytes = pick_setting(IOMAP_TUNE_DIRTY_BACKGROUND_BYTES, r);
	cfg.cache.dirty_writeback_ms = t_random_below(r, 2) ? IOMAP_NEVER : 1 + (unsigned)t_random_below(r, 50);
	cfg.cache.dirty_expire_ms = t_random_below(r, 2) ? 0 : 1 + (unsigned)t_random_below(r, 50);
	cfg.cache.writeback_threads = (unsigned)t_random_below(r, 3);
	cfg.cache.queue_depth = t_random_below(r, 3) ? 0 : 1 + (unsigned)t_random_below(r, 8);
	cfg.cache.readahead_bytes = (unsigned)pick_setting(IOMAP_TUNE_READAHEAD_BYTES, r);
	for (unsigned i = 0; i < NR_KINDS; i++)
		if (i != OP_WRITE && i != OP_READ && t_random_below(r, 4) == 0)
			cfg.left_out |= 1U << i;
	if (device != HOLD)
		cfg.left_out |= 1U << OP_CRASH;
	cfg.dontcache = t_random_below(r, 2);
	cfg.cache.dontcache = (enum iomap_dontcache)t_random_below(r, 3);
	if (device != EXTFS)
		cfg.left_out |= 1U << OP_CLONE | 1U << OP_SNAPSHOT | 1U << OP_RESTORE;
	if (device == EXTFS)
		make_extfs_config(r);
	around = *r ^ 0xd1ec7;
	make_ops(r);
	make_around(&around);
}

static void print_config(void)
{
	printf("  device %s%s%s latency %llu ns, block %u, accounting %u, cap %llu, read back %d\n", device_names[cfg.device],
	       cfg.device >= HOLD && cfg.inline_done ? " inline" : "", cfg.device >= HOLD && cfg.shuffle ? " shuffled" : "",
	       (unsigned long long)cfg.latency_ns, cfg.block, cfg.accounting, (unsigned long long)cfg.cap, cfg.read_back);
	printf("  memory %llu, max folio %llu, error policy %u, dirty %llu, background %llu, writeback %d ms, expire %u ms, "
	       "threads %u, depth %u, readahead %d\n", (unsigned long long)cfg.cache.memory_bytes,
	       (unsigned long long)cfg.cache.max_folio_bytes, cfg.cache.error_policy,
	       (unsigned long long)cfg.cache.dirty_bytes, (unsigned long long)cfg.cache.dirty_background_bytes,
	       (int)cfg.cache.dirty_writeback_ms, cfg.cache.dirty_expire_ms, cfg.cache.writeback_threads,
	       cfg.cache.queue_depth, (int)cfg.cache.readahead_bytes);
	printf("  dontcache %s, policy %u\n", cfg.dontcache ? "in half of the calls" : "never", cfg.cache.dontcache);
	if (cfg.device == EXTFS)
		printf("  extfs flags %x, inline up to %u, extents up to %u, boundary every %u blocks\n", cfg.extfs.flags,
		       cfg.extfs.inline_max, cfg.extfs.extent_max, cfg.extfs.boundary);
	printf("  unstable %d, left out:", cfg.unstable);
	for (unsigned i = 0; i < NR_KINDS; i++)
		if (cfg.left_out & 1U << i)
			printf(" %s", kinds[i].name);
	printf("\n");
}

static void print_op(unsigned nr, const struct op *op)
{
	unsigned long long pos = op->pos, len = op->len;

	printf("  %4u %-12s %s%s", nr, kinds[op->kind].name, op->flags & IOMAP_RWF_DIRECT ? "direct " : "",
	       op->flags & IOMAP_RWF_WRITETHROUGH ? "through " : "");
	switch (op->kind) {
	case OP_WRITE: case OP_READ: case OP_NOWAIT_WRITE: case OP_NOWAIT_READ:
		printf("handle %u, %llu + %llu\n", op->slot, pos, len);
		break;
	case OP_WRITEV: case OP_READV:
		printf("handle %u, %llu + %llu in %u\n", op->slot, pos, len, 1 + op->arg % 8);
		break;
	case OP_DSYNC:
		printf("handle %u, %llu + %llu, %s\n", op->slot, pos, len, op->arg & 1 ? "SYNC" : "DSYNC");
		break;
	case OP_APPEND:
		printf("handle %u, %llu\n", op->slot, len);
		break;
	case OP_TRUNCATE:
		printf("handle %u, to %llu\n", op->slot, pos);
		break;
	case OP_FADVISE:
		printf("handle %u, %llu + %llu, advice %u\n", op->slot, pos, len, op->arg % 6);
		break;
	case OP_PUNCH: case OP_SEEK: case OP_ZERO: case OP_ALLOCATE: case OP_SYNC_RANGE:
		printf("handle %u, %llu + %llu, arg %u\n", op->slot, pos, len, op->arg);
		break;
	case OP_REOPEN:
		printf("%s%s%s\n", op->arg & 1 ? "both " : "", op->arg & 14 ? "" : "O_TRUNC ", op->arg & 112 ? "" : "O_APPEND");
		break;
	case OP_SET:
		printf("%u to %llu\n", tunables[op->arg], pos);
		break;
	default:
		printf("handle %u\n", op->slot);
	}
}

/* --- the models -------------------------------------------------------------------------------------------------- */

static unsigned char *bytes;            /* what the file holds; zeros past its size */
static uint64_t size;
static uint64_t top;                    /* the largest size it has had, in whole sectors */

/* After a crash: sector s holds durable[s] (where had[s]), zeros (where zero_ok[s]), or one of its versions. */
static struct version {
	unsigned next;          /* in pool, 0 = end */
	unsigned char data[SECTOR];
} *pool;
static unsigned pool_used;
static unsigned *versions;
static unsigned char *durable, *had, *zero_ok;
static struct { uint64_t lo, hi; } *sizes;      /* and the size is in one of these */
static unsigned nr_sizes;

static void *map_shared(size_t len, int flags)
{
	void *p = mmap(NULL, len, PROT_READ | PROT_WRITE, flags | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED)
		abort();
	return p;
}

static void model_init(void)
{
	bytes = map_shared(MODEL_BYTES, MAP_PRIVATE);
	size = 0;
	pool = map_shared((POOL + 1024) * sizeof(*pool), MAP_PRIVATE | MAP_NORESERVE);
	pool_used = 1;
	versions = map_shared(NR_SECTORS * sizeof(*versions), MAP_PRIVATE);
	durable = map_shared(MODEL_BYTES, MAP_PRIVATE);
	had = map_shared(NR_SECTORS, MAP_PRIVATE);
	zero_ok = map_shared(NR_SECTORS, MAP_PRIVATE);
	sizes = map_shared(sizeof(*sizes) * 65536, MAP_PRIVATE | MAP_NORESERVE);
	sizes[0].lo = sizes[0].hi = 0;
	nr_sizes = 1;
}

static bool tracks_crashes(void)
{
	return cfg.device == HOLD;
}

/* [from, to) of the bytes has changed and is not durable. */
static void new_version(uint64_t from, uint64_t to)
{
	if (!tracks_crashes())
		return;
	for (uint64_t s = from / SECTOR; s * SECTOR < to; s++) {
		struct version *v = &pool[pool_used];

		memcpy(v->data, bytes + s * SECTOR, SECTOR);
		v->next = versions[s];
		versions[s] = pool_used++;
	}
}

/* The file was cut inside sector s: whatever the sector may hold, it may hold with zeros from there on. */
static void cut_versions(uint64_t s, uint64_t off)
{
	unsigned head = versions[s];

	if (!tracks_crashes())
		return;
	for (unsigned v = head; v && pool_used < POOL; v = pool[v].next) {
		struct version *cut = &pool[pool_used];

		memcpy(cut->data, pool[v].data, off);
		memset(cut->data + off, 0, SECTOR - off);
		cut->next = versions[s];
		versions[s] = pool_used++;
	}
	if (had[s] && pool_used < POOL) {
		struct version *cut = &pool[pool_used];

		memcpy(cut->data, durable + s * SECTOR, off);
		memset(cut->data + off, 0, SECTOR - off);
		cut->next = versions[s];
		versions[s] = pool_used++;
	}
}

static bool pool_is_full(void)
{
	return tracks_crashes() && (pool_used > POOL - (LEN_MAX + MODEL_BYTES / 8) / SECTOR || nr_sizes > 60000);
}

static void new_size(uint64_t lo, uint64_t hi)
{
	if (!tracks_crashes())
		return;
	if (hi > top)
		top = (hi + SECTOR - 1) / SECTOR * SECTOR;
	sizes[nr_sizes].lo = lo;
	sizes[nr_sizes++].hi = hi;
}

/* All is durable. */
static void model_synced(void)
{
	if (!tracks_crashes())
		return;
	memcpy(durable, bytes, top);
	memset(versions, 0, top / SECTOR * sizeof(*versions));
	memset(zero_ok, 0, top / SECTOR);
	for (uint64_t s = 0; s < top / SECTOR; s++)
		had[s] = s * SECTOR < size;
	pool_used = 1;
	sizes[0].lo = sizes[0].hi = size;
	nr_sizes = 1;
}

static void model_synced_range(uint64_t pos, uint64_t len)
{
	unsigned kept = 0;

	if (!tracks_crashes() || !len)
		return;
	for (uint64_t s = pos / SECTOR; s * SECTOR < pos + len; s++) {
		memcpy(durable + s * SECTOR, bytes + s * SECTOR, SECTOR);
		versions[s] = 0;
		had[s] = 1;
		zero_ok[s] = 0;
	}
	for (unsigned i = 0; i < nr_sizes; i++) {
		uint64_t lo = sizes[i].lo > pos + len ? sizes[i].lo : pos + len;

		if (lo > sizes[i].hi)
			continue;
		sizes[kept].lo = lo;
		sizes[kept++].hi = sizes[i].hi;
	}
	nr_sizes = kept;
}

static void gap(uint64_t from, uint64_t to)
{
	if (tracks_crashes())
		for (uint64_t s = (from + SECTOR - 1) / SECTOR; s * SECTOR < to; s++)
			zero_ok[s] = 1;
}

static void model_write(uint64_t pos, const void *buf, uint64_t len)
{
	uint64_t old = size;

	if (!len)
		return;
	if (pos > size)
		gap(size, pos);
	memcpy(bytes + pos, buf, len);
	if (pos + len > size)
		size = pos + len;
	new_version(pos, pos + len);
	if (size > old)
		new_size(old, size);
}

static void model_truncate(uint64_t to)
{
	uint64_t old = size;

	if (to == old)
		return;
	size = to;
	if (to < old) {
		memset(bytes + to, 0, old - to);
		if (to % SECTOR) {
			cut_versions(to / SECTOR, to % SECTOR);
			new_version(to, to + 1);
		}
		/* whole sectors past it are gone; where the file grows again they are zeros or what is written then */
	} else {
		gap(old, to);
	}
	new_size(to, to);
}

/* [pos, to) reads as zeros; what of it lies past the size did so already. */
static void model_clear(uint64_t pos, uint64_t to)
{
	if (to > size)
		to = size;
	if (pos >= to)
		return;
	memset(bytes + pos, 0, to - pos);
	new_version(pos, to);
}

/* --- the file ---------------------------------------------------------------------------------------------------- */

static struct iomap_cache *cache;
static struct iomap_device *device;
static struct t_hold *hold;
static struct extfs *fs;
static struct extfs_file *main_file, *snapshot;
static unsigned char *snapshot_bytes;   /* what it holds */
static uint64_t snapshot_size;
static struct iomap_file *files[2];
static bool appends[2];
static char path[4096];
static unsigned char *buf;

__attribute__((format(printf, 1, 2)))
static _Noreturn void bad(const char *format, ...)
{
	va_list ap;

	va_start(ap, format);
	vsnprintf(shared->text, sizeof(shared->text), format, ap);
	va_end(ap);
	_exit(1);
}

static void want(const char *what, long long got, long long wanted)
{
	if (got != wanted)
		bad("%s: %lld, expected %lld", what, got, wanted);
}

static _Noreturn void skip(const char *why)
{
	snprintf(shared->text, sizeof(shared->text), "%s", why);
	_exit(EXIT_SKIPPED);
}

static void why_not_open(int ret)
{
	struct statx stx;

	if (cfg.device != AIO)
		return;
	if (ret == -EOPNOTSUPP)
		skip("O_DIRECT is not possible there");
	if (ret == -EINVAL && statx(AT_FDCWD, path, 0, STATX_DIOALIGN, &stx) == 0 && stx.stx_mask & STATX_DIOALIGN &&
	    cfg.block < stx.stx_dio_offset_align)
		skip("the file's O_DIRECT alignment is above the block size");
}

static void engine_params(struct iomap_file_params *params, struct extfs_file *file)
{
	params->ops = &extfs_ops;
	params->writeback_ops = &extfs_writeback_ops;
	params->ops_priv = file;
	params->size = extfs_open_size(file);
}

static void open_slot(unsigned slot, int oflags)
{
	struct iomap_file_params params = IOMAP_FILE_PARAMS_INIT;
	int ret;

	params.flags = cfg.unstable ? IOMAP_OPEN_UNSTABLE : 0;

	params.block_size = cfg.block;
	params.device = device;
	if (fs)
		engine_params(&params, main_file);
	ret = iomap_open_with(cache, fs ? extfs_name(main_file) : device ? NULL : path, O_RDWR | O_CREAT | oflags, 0600, &params,
			      &files[slot]);
	if (ret)
		why_not_open(ret);
	want("open", ret, 0);
	appends[slot] = oflags & O_APPEND;
}

static void close_slot(unsigned slot)
{
	struct iomap_file *file = files[slot];

	files[slot] = NULL;
	want("close", iomap_close(file), 0);
}

static void open_device(void)
{
	struct iomap_mem_params mem = IOMAP_MEM_PARAMS_INIT;

	mem.latency_ns = cfg.latency_ns;
	if (cfg.device == MEM)
		want("open mem device", iomap_device_open_mem(&mem, &device), 0);
	else if (hold)
		device = t_hold_device(hold);
	else
		device = NULL;
}

static void poke(void *priv, uint64_t addr, const void *from, uint64_t len) { t_hold_poke(priv, from, len, addr); }
static void peek(void *priv, uint64_t addr, void *to, uint64_t len) { t_hold_peek(priv, to, len, addr); }

static void make_extfs(void)
{
	cfg.extfs.poke = poke;
	cfg.extfs.peek = peek;
	cfg.extfs.priv = hold;
	fs = extfs_create(&cfg.extfs);
	main_file = fs ? extfs_add(fs, "main") : NULL;
	if (!main_file)
		abort();
	snapshot_bytes = map_shared(MODEL_BYTES, MAP_PRIVATE);
}

static void up(uint64_t seed)
{
	struct t_hold_params params = {
		.capacity = MODEL_BYTES, .block = 512, .mem_align = 512, .volatile_cache = true, .seed = seed,
		.inline_done = cfg.inline_done, .shuffle = cfg.shuffle, .latency_ns = cfg.latency_ns,
		.jitter_ns = cfg.latency_ns, .unstable = cfg.unstable, .direct_reads = true,
	};
	int ret = iomap_cache_create(&cache, &cfg.cache);

	want("cache create", ret, 0);
	if (cfg.device == EXTFS) {
		params.size = params.capacity = EXTFS_BYTES;
		params.fixed_size = true;
		params.volatile_cache = false;
	}
	if (cfg.device >= HOLD && !hold)
		hold = t_hold_create(&params);
	if (cfg.device == EXTFS && !fs)
		make_extfs();
	open_device();
	open_slot(0, 0);
}

static void check_hold(void)
{
	const char *broken = hold ? t_hold_bad(hold) : NULL;

	if (broken)
		bad("the device says: %s", broken);
}

/* @quiet: nothing is under way. */
static void check_fs(bool quiet)
{
	char why[300] = "";

	if (fs && !extfs_check(fs, quiet, why, sizeof(why)))
		bad("%s", why);
}

static void wait_no_devices(void)
{
	if (!T_WAIT(t_hold_devices(hold) == 0, 5000))
		bad("the device is never destroyed");
}

static void check_read(const char *what, const unsigned char *got, uint64_t pos, uint64_t len)
{
	const unsigned char *wanted = bytes + pos;

	if (memcmp(got, wanted, len) == 0)
		return;
	for (uint64_t i = 0; ; i++) {
		if (got[i] == wanted[i])
			continue;
		for (uint64_t n = i; n < len; n++)
			if (got[n] == wanted[n] || n - i == 65536)
				len = n;
		bad("%s %llu + …: byte %llu is %02x, expected %02x; at least %llu wrong", what, (unsigned long long)pos,
		    (unsigned long long)(pos + i), got[i], wanted[i], (unsigned long long)(len - i));
	}
}

static uint64_t readable(uint64_t pos, uint64_t len)
{
	return pos >= size ? 0 : len < size - pos ? len : size - pos;
}

static void read_and_check(const char *what, unsigned slot, uint64_t pos, uint64_t len)
{
	ssize_t n = iomap_pread(files[slot], buf, len, (off_t)pos);

	if (n != (ssize_t)readable(pos, len)) {
		ssize_t more = n < 0 ? n : iomap_pread(files[slot], buf, 1, (off_t)pos + n);

		bad("%s %llu + %llu: %lld, one byte more: %lld, size is %llu", what, (unsigned long long)pos,
		    (unsigned long long)len, (long long)n, (long long)more, (unsigned long long)size);
	}
	check_read(what, buf, pos, (uint64_t)n);
}

static void verify(void)
{
	for (uint64_t pos = 0; pos < size; pos += 200000)
		read_and_check("verify", 0, pos, 200000);
	want("read at the end", iomap_pread(files[0], buf, 100, (off_t)size), 0);
}

/* What is on the file system, by other means; after a sync. */
static void verify_on_disk(void)
{
	struct stat st;
	int fd;

	if (cfg.device != AIO)
		return;
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0 || fstat(fd, &st) != 0)
		bad("cannot open the file by open(2): %s", strerror(errno));
	want("st_size of the file after sync", st.st_size, (long long)size);
	for (uint64_t pos = 0; pos < size; ) {
		ssize_t n = pread(fd, buf, 200000, (off_t)pos);

		if (n <= 0)
			bad("pread(2) of the file: %zd", n);
		check_read("read(2) after sync", buf, pos, (uint64_t)n);
		pos += (uint64_t)n;
	}
	close(fd);
}

/* What the engine would find without the cache. */
static void check_stored(const char *what, struct extfs_file *file, const unsigned char *wanted, uint64_t wanted_size)
{
	want(what, (long long)extfs_size(file), (long long)wanted_size);
	for (uint64_t pos = 0; pos < wanted_size; pos += LEN_MAX) {
		uint64_t n = wanted_size - pos < LEN_MAX ? wanted_size - pos : LEN_MAX;

		extfs_peek(file, buf, n, pos);
		for (uint64_t i = 0; i < n; i++)
			if (buf[i] != wanted[pos + i])
				bad("%s: byte %llu of %s is %02x, expected %02x", what, (unsigned long long)(pos + i), extfs_name(file),
				    buf[i], wanted[pos + i]);
	}
}

static void check_durable(const char *what)
{
	if (fs) {
		check_stored(what, main_file, bytes, size);
		return;
	}
	if (cfg.device != HOLD)
		return;
	want("size of what is durable after sync", (long long)t_hold_durable_size(hold), (long long)size);
	for (uint64_t pos = 0; pos < size; pos += LEN_MAX) {
		uint64_t n = readable(pos, LEN_MAX);

		t_hold_peek_durable(hold, buf, n, pos);
		check_read(what, buf, pos, n);
	}
}

static void after_sync(const char *what, int ret)
{
	want(what, ret, 0);
	model_synced();
	check_durable(what);
	verify_on_disk();
}

/* Cuts at[0, len) into pieces, some of them empty. */
static unsigned cut_up(struct iovec *iov, unsigned char *at, uint64_t len, unsigned pieces, uint64_t seed)
{
	uint64_t done = 0;

	for (unsigned i = 0; i < pieces; i++) {
		uint64_t n = i == pieces - 1 ? len - done : t_random_below(&seed, len - done + 1);

		iov[i].iov_base = at + done;
		iov[i].iov_len = n;
		done += n;
	}
	return pieces;
}

/* In some runs a part of the reads and writes leaves nothing behind. */
static int dontcache(const struct op *op)
{
	return cfg.dontcache && op->arg >> 16 & 1 ? IOMAP_RWF_DONTCACHE : 0;
}

/* A write around the cache, or through it, is on the device when it returns. */
static void check_on_device(uint64_t pos, uint64_t len)
{
	int fd;

	if (cfg.device == HOLD) {
		t_hold_peek(hold, buf, len, pos);
		check_read("what the device has after a direct write", buf, pos, len);
	}
	if (cfg.device != AIO)
		return;
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		bad("cannot open the file by open(2): %s", strerror(errno));
	want("pread(2) after a direct write", pread(fd, buf, len, (off_t)pos), (long long)len);
	check_read("what the file has after a direct write", buf, pos, len);
	close(fd);
}

static void do_write(const struct op *op)
{
	unsigned slot = op->slot, pieces = op->kind == OP_WRITEV || op->kind == OP_APPEND ? 1 + op->arg % 8 : 1;
	int flags = op->kind == OP_DSYNC ? (op->arg & 1 ? IOMAP_RWF_SYNC : IOMAP_RWF_DSYNC) :
		    op->kind == OP_APPEND ? IOMAP_RWF_APPEND : op->kind == OP_NOWAIT_WRITE ? IOMAP_RWF_NOWAIT : 0;
	unsigned char *from = buf + op->skew;
	bool append = op->kind == OP_APPEND || appends[slot];
	uint64_t pos = append ? size : op->pos;
	struct iovec iov[8];
	ssize_t n;

	if (pos + op->len > MODEL_BYTES)
		return;
	t_fill(from, pos, op->len, op->seed);
	cut_up(iov, from, op->len, pieces, op->seed);
	flags |= op->flags & IOMAP_RWF_WRITETHROUGH ? 0 : dontcache(op);
	if (op->kind == OP_WRITE && !op->flags && !flags)
		n = iomap_pwrite(files[slot], buf, op->len, (off_t)op->pos);
	else
		n = iomap_pwritev2(files[slot], iov, (int)pieces, (off_t)op->pos, flags | op->flags);
	if (op->kind == OP_NOWAIT_WRITE) {
		if (n != -EAGAIN && (n < 0 || n > (ssize_t)op->len || (n == 0 && op->len)))
			bad("nowait write of %llu: %lld", (unsigned long long)op->len, (long long)n);
	} else {
		want("write", n, (long long)op->len);
	}
	if (n <= 0)
		return;
	model_write(pos, from, (uint64_t)n);
	if (op->kind == OP_DSYNC)
		model_synced_range(pos, (uint64_t)n);
	if (op->flags)
		check_on_device(pos, (uint64_t)n);
	if (cfg.read_back)
		read_and_check("read back", slot, pos > 10 ? pos - 10 : 0, (uint64_t)n + 20);
}

static void do_read(const struct op *op)
{
	unsigned pieces = op->kind == OP_READV ? 1 + op->arg % 8 : 1;
	unsigned char *to = buf + op->skew;
	struct iovec iov[8];
	ssize_t n;

	if (op->kind == OP_READ && !op->flags && !dontcache(op)) {
		read_and_check("read", op->slot, op->pos, op->len);
		return;
	}
	cut_up(iov, to, op->len, pieces, op->seed);
	n = iomap_preadv2(files[op->slot], iov, (int)pieces, (off_t)op->pos,
			  op->flags | (op->kind == OP_NOWAIT_READ ? IOMAP_RWF_NOWAIT : 0) | dontcache(op));
	if (op->kind == OP_NOWAIT_READ) {
		uint64_t most = readable(op->pos, op->len);

		if (n == -EAGAIN)
			return;
		if (n < 0 || n > (ssize_t)most || (n == 0 && most))
			bad("nowait read %llu + %llu: %lld, size is %llu", (unsigned long long)op->pos,
			    (unsigned long long)op->len, (long long)n, (unsigned long long)size);
	} else {
		want("readv", n, (long long)readable(op->pos, op->len));
	}
	check_read("readv", to, op->pos, (uint64_t)n);
}

static void do_reopen(const struct op *op)
{
	bool both = op->arg & 1 && files[1];
	int oflags = (op->arg & 14 ? 0 : O_TRUNC) | (op->arg & 112 ? 0 : O_APPEND);

	if (both)
		close_slot(1);
	close_slot(0);
	open_slot(0, oflags);
	if (oflags & O_TRUNC)
		model_truncate(0);
	if (both)
		open_slot(1, 0);
}

static void do_fallocate(const struct op *op)
{
	bool keep = op->kind == OP_PUNCH || op->arg & 1;
	int mode = (op->kind == OP_PUNCH ? FALLOC_FL_PUNCH_HOLE : op->kind == OP_ZERO ? FALLOC_FL_ZERO_RANGE : 0) |
		   (keep ? FALLOC_FL_KEEP_SIZE : 0);
	uint64_t end = op->pos + op->len;
	int ret;

	if (end > MODEL_BYTES)
		return;
	ret = iomap_fallocate(files[op->slot], mode, (off_t)op->pos, (off_t)op->len);
	if (!op->len) {
		want("fallocate of nothing", ret, -EINVAL);
		return;
	}
	if (ret == -EOPNOTSUPP && cfg.device == AIO && op->kind != OP_ZERO)
		return;         /* the file system there cannot */
	want("fallocate", ret, 0);
	if (op->kind != OP_ALLOCATE)
		model_clear(op->pos, end);
	if (!keep && end > size)
		model_truncate(end);
	if (cfg.read_back)
		read_and_check("read after fallocate", op->slot, op->pos > 2000 ? op->pos - 2000 : 0, op->len + 4000);
}

static bool all_zeros(uint64_t pos, uint64_t end)
{
	while (pos < end && !bytes[pos])
		pos++;
	return pos >= end;
}

/* What is said to be a hole holds zeros. Which zeros are data only tests that count blocks can tell. */
static void do_seek(const struct op *op)
{
	bool data = op->arg & 1;
	off_t at = iomap_lseek(files[op->slot], (off_t)op->pos, data ? SEEK_DATA : SEEK_HOLE);
	uint64_t end;

	if (op->pos >= size) {
		want("seek past the end", at, -ENXIO);
		return;
	}
	if (at < 0 && !(data && at == -ENXIO))
		bad("seek %s from %llu: %lld", data ? "data" : "hole", (unsigned long long)op->pos, (long long)at);
	if (at >= 0 && ((uint64_t)at < op->pos || (uint64_t)at > size || (data && (uint64_t)at == size)))
		bad("seek %s from %llu: %lld, size is %llu", data ? "data" : "hole", (unsigned long long)op->pos, (long long)at,
		    (unsigned long long)size);
	if (data && !all_zeros(op->pos, at < 0 ? size : (uint64_t)at))
		bad("seek data from %llu passed over data: %lld", (unsigned long long)op->pos, (long long)at);
	end = data ? 0 : ((uint64_t)at / cfg.block + 1) * cfg.block;
	if (!data && !all_zeros((uint64_t)at, end < size ? end : size))
		bad("seek hole from %llu found data: %lld", (unsigned long long)op->pos, (long long)at);
}

static void do_sync_range(const struct op *op)
{
	unsigned flags = op->arg % 16;

	want("sync range", iomap_sync_range(files[op->slot], (off_t)op->pos, (off_t)op->len, flags), 0);
	if (!(flags & IOMAP_SYNC_DURABLE) || !tracks_crashes())
		return;
	if (!op->len)
		model_synced_range(op->pos, size > op->pos ? size - op->pos : 0);
	else
		model_synced_range(op->pos, readable(op->pos, op->len));
}

/* --- clones ------------------------------------------------------------------------------------------------------ */

static void after_sync(const char *what, int ret);

static void do_clone(void)
{
	after_sync("sync before clone", iomap_cache_sync(cache));  /* the snapshot, too: nothing of it stays cached */
	if (!snapshot)
		snapshot = extfs_add(fs, "snapshot");
	want("clone", extfs_clone(main_file, snapshot), 0);
	memcpy(snapshot_bytes, bytes, MODEL_BYTES);
	snapshot_size = size;
}

/* Reads some of the snapshot and writes a little into it: the file must not notice. */
static void do_snapshot(const struct op *op)
{
	struct iomap_file_params params = IOMAP_FILE_PARAMS_INIT;
	struct iomap_file *file;
	uint64_t pos = op->pos % (snapshot_size + 1), n;

	if (!snapshot)
		return;
	params.block_size = cfg.block;
	params.device = device;
	engine_params(&params, snapshot);
	want("open of the snapshot", iomap_open_with(cache, extfs_name(snapshot), O_RDWR, 0, &params, &file), 0);
	want("size of the snapshot", iomap_size(file), (long long)snapshot_size);
	n = op->len < snapshot_size - pos ? op->len : snapshot_size - pos;
	want("read of the snapshot", iomap_pread(file, buf, op->len, (off_t)pos), (long long)n);
	if (memcmp(buf, snapshot_bytes + pos, n))
		bad("the snapshot has changed in [%llu, +%llu)", (unsigned long long)pos, (unsigned long long)n);
	if (op->arg & 1 && op->pos + op->len <= MODEL_BYTES && op->len) {
		t_fill(buf, op->pos, op->len, op->seed);
		want("write to the snapshot", iomap_pwrite(file, buf, op->len, (off_t)op->pos), (long long)op->len);
		memcpy(snapshot_bytes + op->pos, buf, op->len);
		if (op->pos + op->len > snapshot_size)
			snapshot_size = op->pos + op->len;
	}
	if (op->arg & 6) {
		want("fsync of the snapshot", iomap_fsync(file), 0);
		check_stored("snapshot", snapshot, snapshot_bytes, snapshot_size);
	}
	want("close of the snapshot", iomap_close(file), 0);
}

/* The file becomes what the snapshot is; or the snapshot goes. */
static void do_restore(const struct op *op)
{
	if (!snapshot)
		return;
	want("cache sync", iomap_cache_sync(cache), 0);
	check_stored("snapshot before it is restored", snapshot, snapshot_bytes, snapshot_size);
	if (op->arg & 1) {
		extfs_remove(snapshot);
		snapshot = NULL;
		return;
	}
	for (unsigned i = 0; i < 2; i++)
		if (files[i])
			close_slot(i);
	want("cache sync", iomap_cache_sync(cache), 0);
	want("clone back", extfs_clone(snapshot, main_file), 0);
	memcpy(bytes, snapshot_bytes, MODEL_BYTES);
	size = snapshot_size;
	open_slot(0, 0);
}

static bool may_hold(uint64_t s, const unsigned char *data, uint64_t len)
{
	static const unsigned char zeros[SECTOR];

	if (had[s] && memcmp(data, durable + s * SECTOR, len) == 0)
		return true;
	if (zero_ok[s] && memcmp(data, zeros, len) == 0)
		return true;
	for (unsigned v = versions[s]; v; v = pool[v].next)
		if (memcmp(data, pool[v].data, len) == 0)
			return true;
	if (!cfg.unstable)
		return false;
	for (uint64_t i = 0; i < len; i++) {    /* any mixture */
		bool known = (had[s] && data[i] == durable[s * SECTOR + i]) || (zero_ok[s] && !data[i]);

		for (unsigned v = versions[s]; v && !known; v = pool[v].next)
			known = data[i] == pool[v].data[i];
		if (!known)
			return false;
	}
	return true;
}

/* Which version the front of a sector is of, and which the rest: 0 zeros, 1 durable, 2 the newest, 3 the one before … */
static void explain(uint64_t s, const unsigned char *data, uint64_t len, char *out, size_t out_len)
{
	static const unsigned char zeros[SECTOR];
	const unsigned char *candidates[64] = { zeros, durable + s * SECTOR };
	unsigned nr = 2, front = 0, rest = 0;
	uint64_t most = 0, from = len;

	for (unsigned v = versions[s]; v && nr < 64; v = pool[v].next)
		candidates[nr++] = pool[v].data;
	for (unsigned i = 0; i < nr; i++) {
		uint64_t n = 0, k = len;

		while (n < len && data[n] == candidates[i][n])
			n++;
		while (k > 0 && data[k - 1] == candidates[i][k - 1])
			k--;
		if (n > most) {
			most = n;
			front = i;
		}
		if (k < from) {
			from = k;
			rest = i;
		}
	}
	snprintf(out, out_len, "of %u versions its first %llu bytes are of number %u, those from %llu on of number %u", nr,
		 (unsigned long long)most, front, (unsigned long long)from, rest);
}

/* The power goes; what is on the device is compared with what may be there, and is what the file holds from now on. */
static void do_crash(const struct op *op)
{
	struct t_hold *image = t_hold_crash(hold, op->arg);
	uint64_t after = t_hold_size(image);
	bool size_ok = false;
	char how[200];

	iomap_cache_abandon(cache);
	for (unsigned i = 0; i < 2; i++)
		if (files[i])
			want("close after abandon", iomap_close(files[i]), -EBADF);
	files[0] = files[1] = NULL;
	want("device close", iomap_device_close(device), 0);
	check_hold();
	wait_no_devices();
	t_hold_free(hold);
	hold = image;
	for (unsigned i = 0; i < nr_sizes; i++)
		size_ok |= sizes[i].lo <= after && after <= sizes[i].hi;
	if (!size_ok)
		bad("after a crash the size is %llu, which it never was since the last sync (then %llu, now %llu)",
		    (unsigned long long)after, (unsigned long long)sizes[0].lo, (unsigned long long)size);
	memset(bytes, 0, MODEL_BYTES);
	t_hold_peek(image, bytes, after, 0);
	for (uint64_t pos = 0; pos < after; pos += SECTOR) {
		uint64_t s = pos / SECTOR, len = after - pos < SECTOR ? after - pos : SECTOR;

		if (may_hold(s, bytes + pos, len))
			continue;
		explain(s, bytes + pos, len, how, sizeof(how));
		bad("after a crash sector %llu (byte %llu; size %llu) holds what nobody wrote: was durable: %d, zeros allowed: %d, "
		    "written since: %d; %s", (unsigned long long)s, (unsigned long long)pos, (unsigned long long)after, had[s],
		    zero_ok[s], versions[s] != 0, how);
	}
	size = after;
	model_synced();
	up(op->arg);
}

static void do_op(const struct op *given)
{
	struct op op = *given;

	if (!files[op.slot])
		op.slot = 0;
	if (pool_is_full())
		after_sync("fsync", iomap_fsync(files[0]));
	switch (op.kind) {
	case OP_WRITE: case OP_WRITEV: case OP_DSYNC: case OP_APPEND: case OP_NOWAIT_WRITE:
		do_write(&op);
		break;
	case OP_READ: case OP_READV: case OP_NOWAIT_READ:
		do_read(&op);
		break;
	case OP_VERIFY:
		verify();
		break;
	case OP_TRUNCATE:
		want("ftruncate", iomap_ftruncate(files[op.slot], (off_t)op.pos), 0);
		model_truncate(op.pos);
		if (cfg.read_back)
			read_and_check("read after truncate", op.slot, op.pos > 5000 ? op.pos - 5000 : 0, 10000);
		break;
	case OP_FSYNC:
		after_sync("fsync", iomap_fsync(files[op.slot]));
		break;
	case OP_FDATASYNC:
		after_sync("fdatasync", iomap_fdatasync(files[op.slot]));
		break;
	case OP_SYNC:
		after_sync("cache sync", iomap_cache_sync(cache));
		break;
	case OP_FADVISE:
		want("fadvise", iomap_fadvise(files[op.slot], (off_t)op.pos, (off_t)op.len, (int)(op.arg % 6)), 0);
		break;
	case OP_DROP:
		want("drop", iomap_cache_drop(cache), 0);
		break;
	case OP_REOPEN:
		do_reopen(&op);
		break;
	case OP_SECOND:
		if (files[1])
			close_slot(1);
		else
			open_slot(1, 0);
		break;
	case OP_SET:
		want("cache set", iomap_cache_set(cache, tunables[op.arg], op.pos), 0);
		break;
	case OP_PUNCH: case OP_ZERO: case OP_ALLOCATE:
		do_fallocate(&op);
		break;
	case OP_SEEK:
		do_seek(&op);
		break;
	case OP_SYNC_RANGE:
		do_sync_range(&op);
		break;
	case OP_CRASH:
		do_crash(&op);
		break;
	case OP_CLONE:
		do_clone();
		break;
	case OP_SNAPSHOT:
		do_snapshot(&op);
		break;
	case OP_RESTORE:
		do_restore(&op);
		break;
	default:
		abort();
	}
}

static void check_step(void)
{
	char why[400] = "";
	int ret = iomap_cache_check(cache, why, sizeof(why));

	if (ret)
		bad("iomap_cache_check: %d, %s", ret, why);
	for (unsigned i = 0; i < 2; i++)
		if (files[i])
			want("size", iomap_size(files[i]), (long long)size);
	check_hold();
	check_fs(false);
}

static void check_sums(void)
{
	struct iomap_cache_stat st;

	want("stat", iomap_cache_stat(cache, &st, sizeof(st)), 0);
	want("dirty_bytes after sync", (long long)st.dirty_bytes, 0);
	want("writeback_bytes after sync", (long long)st.writeback_bytes, 0);
	want("dontcache_dirty_bytes after sync", (long long)st.dontcache_dirty_bytes, 0);
	want("pinned_bytes after sync", (long long)st.pinned_bytes, 0);
	want("failed_bytes after sync", (long long)st.failed_bytes, 0);
	if (st.dirtied_bytes + st.redirtied_bytes != st.written_bytes + st.write_failed_bytes + st.cancelled_bytes)
		bad("after sync: dirtied %llu + redirtied %llu != written %llu + failed %llu + cancelled %llu",
		    (unsigned long long)st.dirtied_bytes, (unsigned long long)st.redirtied_bytes,
		    (unsigned long long)st.written_bytes, (unsigned long long)st.write_failed_bytes,
		    (unsigned long long)st.cancelled_bytes);
}

/* One run, in a process of its own. */
static _Noreturn void run_list(const char *file_path)
{
	struct stat st;

	snprintf(path, sizeof(path), "%s", file_path);
	buf = map_shared(LEN_MAX + 4096, MAP_PRIVATE);
	model_init();
	up(1);
	for (unsigned i = 0; i < nr_ops; i++) {
		shared->op = i;
		do_op(&ops[i]);
		check_step();
	}
	shared->op = nr_ops;
	verify();
	want("fstat", iomap_fstat(files[0], &st), 0);
	want("st_size", st.st_size, (long long)size);
	want("lseek to the end", iomap_lseek(files[0], 0, SEEK_END), (long long)size);
	after_sync("last cache sync", iomap_cache_sync(cache));
	check_step();
	check_sums();
	want("drop", iomap_cache_drop(cache), 0);
	verify();
	check_step();
	if (files[1])
		close_slot(1);
	close_slot(0);
	want("destroy", iomap_cache_destroy(cache), 0);
	if (snapshot)
		check_stored("snapshot", snapshot, snapshot_bytes, snapshot_size);
	check_fs(true);
	if (fs)
		extfs_free(fs);
	if (device)
		want("device close", iomap_device_close(device), 0);
	if (hold) {
		wait_no_devices();
		check_hold();
		t_hold_free(hold);
	}
	verify_on_disk();
	free(ops);
	exit(0);
}

/* --- running and shortening -------------------------------------------------------------------------------------- */

enum verdict { PASSED, SKIPPED, FAILED };

/* Runs the list as it is now. Where it fails, shared says where and why. */
static enum verdict run_once(unsigned seconds)
{
	uint64_t end = t_run_now_ns() + (uint64_t)seconds * 1000000000 * t_run_slow();
	char file_path[4096];
	int status;
	pid_t pid;

	t_run_path(file_path, sizeof(file_path), "file");
	unlink(file_path);
	shared->op = 0;
	shared->text[0] = 0;
	fflush(NULL);
	pid = fork();
	if (pid < 0) {
		perror("fork");
		exit(2);
	}
	if (pid == 0)
		run_list(file_path);
	while (waitpid(pid, &status, WNOHANG) == 0) {
		if (t_run_now_ns() < end) {
			t_run_nap();
			continue;
		}
		snprintf(shared->text, sizeof(shared->text), "hangs");
		kill(pid, SIGKILL);
		waitpid(pid, &status, 0);
		break;
	}
	if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
		return PASSED;
	if (WIFEXITED(status) && WEXITSTATUS(status) == EXIT_SKIPPED)
		return SKIPPED;
	if (!shared->text[0] && WIFSIGNALED(status))
		snprintf(shared->text, sizeof(shared->text), "%s", strsignal(WTERMSIG(status)));
	else if (!shared->text[0])
		snprintf(shared->text, sizeof(shared->text), "exit %d", WEXITSTATUS(status));
	return FAILED;
}

/* Leaves out operations for as long as the run still fails, in some way. */
static void shorten(void)
{
	uint64_t end = t_run_now_ns() + 60000000000ULL * t_run_slow();
	struct op *all = ops, *kept;
	unsigned nr = nr_ops, chunk;

	if (shared->op < nr)
		nr = shared->op + 1;    /* what came after does not matter */
	kept = calloc(nr_ops, sizeof(*kept));
	if (!kept)
		abort();
	memcpy(kept, all, nr * sizeof(*kept));
	ops = calloc(nr_ops, sizeof(*ops));
	if (!ops)
		abort();
	for (chunk = (nr + 1) / 2; chunk; chunk = chunk == 1 ? 0 : (chunk + 1) / 2) {
		for (unsigned from = 0; from < nr && t_run_now_ns() < end; ) {
			unsigned to = from + chunk < nr ? from + chunk : nr;

			memcpy(ops, kept, from * sizeof(*ops));
			memcpy(ops + from, kept + to, (nr - to) * sizeof(*ops));
			nr_ops = nr - (to - from);
			if (nr_ops && run_once(10) == FAILED) {
				nr = nr_ops;
				memcpy(kept, ops, nr * sizeof(*kept));
			} else {
				from = to;
			}
		}
	}
	memcpy(ops, kept, nr * sizeof(*ops));
	nr_ops = nr;
	free(kept);
	free(all);
}

static void report(uint64_t seed, unsigned run, bool keep)
{
	printf("FAILED  seed %llu run %u, operation %u (%s) of %u: %s\n", (unsigned long long)seed, run, shared->op,
	       shared->op < nr_ops ? kinds[ops[shared->op].kind].name : "end", nr_ops, shared->text);
	print_config();
	printf("  again: --seed %llu --run %u\n", (unsigned long long)seed, run);
	if (keep) {             /* at least what came last */
		for (unsigned i = shared->op > 12 ? shared->op - 12 : 0; i <= shared->op && i < nr_ops; i++)
			print_op(i, &ops[i]);
		return;
	}
	shorten();
	if (run_once(10) != FAILED) {
		printf("  it depends on timing; shortened to %u operations it failed once, and now not:\n", nr_ops);
		shared->op = nr_ops;
	} else {
		printf("  shortened to %u operations it fails in operation %u: %s\n", nr_ops, shared->op, shared->text);
	}
	for (unsigned i = 0; i < nr_ops; i++)
		print_op(i, &ops[i]);
}

static const unsigned blocks[] = { 512, 1024, 4096, 16384, 65536 };
enum { NR_BLOCKS = 5, NR_MODES = 3, NR_COMBINATIONS = NR_DEVICES * NR_BLOCKS * NR_MODES };

/* How the operations of make check are spread; `rounds` multiplies the runs. */
static const struct { unsigned runs, ops; } plan[NR_DEVICES] = {
	[MEM] = { 8, 1000 }, [AIO] = { 5, 720 }, [HOLD] = { 3, 800 }, [EXTFS] = { 4, 800 },
};

static unsigned combination_block(unsigned run)
{
	return run % NR_COMBINATIONS / NR_MODES % NR_BLOCKS;
}

static void set_up_run(uint64_t seed, unsigned run)
{
	uint64_t r = seed * 0x100000001b3ULL + run;
	unsigned combination = run % NR_COMBINATIONS;
	enum device dev = (enum device)(combination / (NR_BLOCKS * NR_MODES));

	(void)t_random(&r);
	make_config(dev, blocks[combination_block(run)], (enum iomap_accounting)(combination % NR_MODES),
		    plan[dev].ops, &r);
}

static uint64_t number(const char *text)
{
	return text ? strtoull(text, NULL, 0) : 0;
}

int main(int argc, char **argv)
{
	uint64_t seed = 0, wanted_ops = 0, seconds = 0, total_ops = 0, end;
	unsigned passed = 0, failed = 0, skipped = 0, told = 0, ops_by[NR_DEVICES] = { 0 };
	double seconds_by[NR_DEVICES] = { 0 };
	long only = -1;
	bool keep = false;

	t_run_options(&argc, argv);
	for (int i = 1; i < argc; i++) {
		if (strcmp(argv[i], "--seed") == 0)
			seed = number(argv[++i]);
		else if (strcmp(argv[i], "--run") == 0)
			only = (long)number(argv[++i]);
		else if (strcmp(argv[i], "--ops") == 0)
			wanted_ops = number(argv[++i]);
		else if (strcmp(argv[i], "--seconds") == 0)
			seconds = number(argv[++i]);
		else if (strcmp(argv[i], "--keep") == 0)
			keep = true;
		else
			return fprintf(stderr, "unknown option %s\n", argv[i]), 2;
	}
	if (!seed)
		seed = t_run_now_ns() / 1000 % 1000000007;
	if (t_run_is_long() && !seconds && !wanted_ops)
		seconds = 3600;
	if (!wanted_ops)
		wanted_ops = t_run_slow() > 1 ? 60000 : 205000;
	printf("seed %llu\n", (unsigned long long)seed);
	shared = map_shared(sizeof(*shared), MAP_SHARED);
	end = t_run_now_ns() + seconds * 1000000000;
	for (unsigned round = 0; failed < 5; round++) {
		if (only < 0 && (seconds ? t_run_now_ns() >= end : total_ops >= wanted_ops))
			break;
		for (unsigned i = 0; i < NR_COMBINATIONS && failed < 5; i++) {
			unsigned run = only >= 0 ? (unsigned)only : round * NR_COMBINATIONS + i;
			unsigned dev = run % NR_COMBINATIONS / (NR_BLOCKS * NR_MODES);
			enum verdict verdict;
			uint64_t started;

			/* a round of 8 is one plan: not every device has its turn in each */
			if (only < 0 && round % 8 >= plan[dev].runs)
				continue;
			if (seconds && t_run_now_ns() >= end)
				break;
			set_up_run(seed, run);
			started = t_run_now_ns();
			verdict = run_once(60);
			seconds_by[dev] += (double)(t_run_now_ns() - started) / 1e9;
			switch (verdict) {
			case PASSED:
				passed++;
				total_ops += nr_ops;
				ops_by[dev] += nr_ops;
				break;
			case SKIPPED:
				skipped++;
				total_ops += nr_ops;
				if (!(told & 1U << (dev * NR_BLOCKS + combination_block(run))))
					printf("skipped %s, block %u: %s\n", device_names[dev], cfg.block, shared->text);
				told |= 1U << (dev * NR_BLOCKS + combination_block(run));
				break;
			case FAILED:
				failed++;
				total_ops += nr_ops;
				report(seed, run, keep);
			}
			free(ops);
			if (only >= 0)
				goto done;
		}
	}
done:
	t_run_remove(t_run_dir());
	for (unsigned dev = 0; dev < NR_DEVICES; dev++)
		printf("%s: %u operations in %.1f s\n", device_names[dev], ops_by[dev], seconds_by[dev]);
	printf("%u passed, %u failed", passed, failed);
	if (skipped)
		printf(", %u skipped", skipped);
	printf("\n");
	return failed != 0;
}
