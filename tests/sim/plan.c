/*
 * plan.c - a seed's parameters and operations
 *
 * Small worlds find big bugs: 1 MiB of cache, folios of at most 64 KiB, blocks of 512 bytes, files that meet each other at few
 * places. Each seed leaves some kinds of operations out, so that the others meet more often.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include "workload.h"

#define KIB UINT64_C(1024)

static const struct { const char *name; unsigned weight; } kinds[OP_KINDS] = {
	[OP_WRITE] = { "write", 30 }, [OP_READ] = { "read", 22 }, [OP_APPEND] = { "append", 10 }, [OP_TRUNCATE] = { "truncate", 6 },
	[OP_FSYNC] = { "fsync", 8 }, [OP_FDATASYNC] = { "fdatasync", 5 }, [OP_DONTNEED] = { "dontneed", 4 },
	[OP_WILLNEED] = { "willneed", 2 }, [OP_DROP] = { "drop", 2 }, [OP_SYNC] = { "sync", 2 }, [OP_LIMIT] = { "limit", 2 },
	[OP_CHECK] = { "check", 2 }, [OP_REOPEN] = { "reopen", 3 }, [OP_SECOND_OPEN] = { "second open", 2 },
	[OP_SLEEP] = { "sleep", 4 }, [OP_STAT] = { "stat", 1 }, [OP_RESOLVE] = { "resolve", 1 },
	/* planned by with_dontcache() only */
	[OP_ADVISE] = { "advise", 0 }, [OP_POLICY] = { "dontcache policy", 0 },
	[OP_PUNCH] = { "punch", 0 }, [OP_ZERO] = { "zero", 0 }, [OP_ALLOCATE] = { "allocate", 0 },
	[OP_SEEK_DATA] = { "seek data", 0 }, [OP_SEEK_HOLE] = { "seek hole", 0 }, [OP_SYNC_RANGE] = { "sync range", 0 },
};

void op_describe(const struct op *op, char *buf, size_t len)
{
	if (op->kind >= OP_HOLES) {
		snprintf(buf, len, "thread %u file %u %s%s flags %d pos %llu len %llu", op->thread, op->file, kinds[op->kind].name,
			 op->keep_size ? " keep size" : "", op->flags, (unsigned long long)op->pos, (unsigned long long)op->len);
		return;
	}
	snprintf(buf, len, "thread %u file %u %s%s%s%s%s%s%s pos %llu len %llu", op->thread, op->file, kinds[op->kind].name,
		 op->flags & IOMAP_RWF_DSYNC ? " dsync" : "", op->flags & IOMAP_RWF_NOWAIT ? " nowait" : "",
		 op->flags & IOMAP_RWF_DONTCACHE ? " dontcache" : "",
		 op->flags & IOMAP_RWF_DIRECT ? " direct" : "", op->flags & IOMAP_RWF_WRITETHROUGH ? " through" : "",
		 op->pieces ? " in pieces" : "", (unsigned long long)op->pos, (unsigned long long)op->len);
}

static uint64_t pick(struct sim_rng *r, const uint64_t *from, unsigned n) { return from[sim_below(r, n)]; }
#define PICK(r, ...) pick(r, (const uint64_t[]){ __VA_ARGS__ }, sizeof((const uint64_t[]){ __VA_ARGS__ }) / sizeof(uint64_t))

static void plan_disk(struct plan *p, struct sim_rng *r)
{
	struct sim_disk_params *d = &p->disk;

	d->dio_align = (uint32_t)PICK(r, 512, 512, 512, 4096);
	d->latency_ns = PICK(r, 1000, 20000, 100000, 2000000);
	d->latency_spread_ns = d->latency_ns * sim_below(r, 4);
	d->workers = 1 + (unsigned)sim_below(r, 3);
	d->queue = (unsigned)PICK(r, 1, 2, 8, 64);
	d->can_allocate = sim_chance(r, 2, 3);
	d->short_io = sim_chance(r, 1, 3) ? (unsigned)sim_below(r, 200) : 0;
	d->eagain = sim_chance(r, 1, 3) ? (unsigned)sim_below(r, 200) : 0;
}

static void plan_faults(struct plan *p, struct sim_rng *r)
{
	struct sim_disk_params *d = &p->disk;

	p->faults = true;
	if (sim_chance(r, 1, 4))
		d->read_eio = (unsigned)sim_below(r, 100);
	if (sim_chance(r, 1, 2))
		d->write_eio = (unsigned)sim_below(r, 200);
	if (sim_chance(r, 1, 3))
		d->flush_eio = (unsigned)sim_below(r, 200);
	if (sim_chance(r, 1, 4))
		d->enospc = (unsigned)sim_below(r, 200);
	if (sim_chance(r, 1, 8))
		d->capacity = (256 + sim_below(r, 1024)) * KIB;
	if (sim_chance(r, 1, 6)) {
		d->bad_file = (unsigned)sim_below(r, p->nr_files);
		d->bad_pos = sim_below(r, 256 * KIB);
		d->bad_len = 1 + sim_below(r, 32 * KIB);
		d->bad_reads = sim_chance(r, 1, 2);
		d->bad_writes = !d->bad_reads || sim_chance(r, 1, 2);
	}
	if (sim_chance(r, 1, 16))
		d->dead_from_ns = UINT64_C(3600000000000) + sim_below(r, 200000000);
	if (sim_chance(r, 1, 3))
		p->fail_chance[SIM_FAULT_ALLOC] = (unsigned)sim_below(r, 60);
}

static void plan_cache(struct plan *p, struct sim_rng *r)
{
	struct iomap_cache_params *c = &p->cache;

	*c = (struct iomap_cache_params)IOMAP_CACHE_PARAMS_INIT;
	c->memory_bytes = 1024 * KIB;
	c->max_folio_bytes = PICK(r, 4096, 16384, 65536, 65536);
	c->accounting = (enum iomap_accounting)sim_below(r, 3);
	c->dirty_bytes = PICK(r, 64, 256, 512, 900) * KIB;
	c->dirty_background_bytes = c->dirty_bytes / PICK(r, 2, 4, 16);
	c->dirty_expire_ms = (unsigned)PICK(r, 1, 20, 1000);
	c->dirty_writeback_ms = (unsigned)PICK(r, 5, 50, 500, IOMAP_NEVER);
	c->writeback_threads = 1 + (unsigned)sim_below(r, 2);
	c->queue_depth = (unsigned)PICK(r, 1, 2, 4, 16, 64);
	c->readahead_bytes = (unsigned)PICK(r, IOMAP_READAHEAD_OFF, 8192, 65536, 131072);
	if (sim_chance(r, 1, 8))
		c->error_policy = IOMAP_ERROR_DROP;
}

/* Places that others use, too: near each other, near the end, on and beside edges of blocks, pages and folios. */
static uint64_t place(struct sim_rng *r, uint64_t size, uint64_t spread)
{
	uint64_t at = sim_chance(r, 1, 3) ? size - sim_below(r, size < spread ? size : spread) : sim_below(r, spread);

	switch (sim_below(r, 4)) {
	case 0: return at / 4096 * 4096;
	case 1: return at / 512 * 512;
	case 2: return at / 65536 * 65536 + sim_below(r, 3) * 512;
	default: return at;
	}
}

static uint64_t length(struct sim_rng *r)
{
	switch (sim_below(r, 8)) {
	case 0: return 512 << sim_below(r, 4);
	case 1: return 4096 * (1 + sim_below(r, 4));
	case 2: return 1 + sim_below(r, OP_BYTES);
	case 3: return 1 + sim_below(r, 64);
	default: return 1 + sim_below(r, 6000);
	}
}

static enum op_kind any_kind(struct sim_rng *r, const unsigned *weight, unsigned sum)
{
	uint64_t at = sim_below(r, sum);
	unsigned k = 0;

	while (at >= weight[k])
		at -= weight[k++];
	return (enum op_kind)k;
}

static void plan_ops(struct plan *p, struct sim_rng *r)
{
	unsigned weight[OP_DRAWN], sum = 0, each = 20 + (unsigned)sim_below(r, 26);
	uint64_t spread = PICK(r, 8192, 40000, 200000, 600000), end[WORLD_FILES];

	for (unsigned k = 0; k < OP_DRAWN; k++) {
		weight[k] = sim_chance(r, 1, 3) && k != OP_WRITE ? 0 : kinds[k].weight * (1 + (unsigned)sim_below(r, 3));
		sum += weight[k];
	}
	for (unsigned f = 0; f < p->nr_files; f++)
		end[f] = p->file[f].size + 1;
	p->nr_ops = each * p->nr_threads;
	for (unsigned i = 0; i < p->nr_ops; i++) {
		struct op *op = &p->op[i];
		unsigned f = (unsigned)sim_below(r, p->nr_files);

		*op = (struct op){ .kind = any_kind(r, weight, sum), .thread = i / each, .file = f };
		op->len = length(r);
		op->pos = place(r, end[f], spread);
		if (op->kind == OP_TRUNCATE && sim_chance(r, 1, 2))
			op->pos = end[f] - sim_below(r, end[f] < 5000 ? end[f] : 5000);
		if ((op->kind == OP_WRITE || op->kind == OP_APPEND) && sim_chance(r, 1, 10))
			op->flags |= IOMAP_RWF_DSYNC;
		if ((op->kind == OP_WRITE || op->kind == OP_READ) && sim_chance(r, 1, 16))
			op->flags |= IOMAP_RWF_NOWAIT;
		op->pieces = sim_chance(r, 1, 5);
		if (op->kind == OP_WRITE && op->pos + op->len > end[f])
			end[f] = op->pos + op->len;
		if (op->kind == OP_APPEND)
			end[f] += op->len;
	}
}

/* Now and then files that do not fit into the cache, so that somebody is always taking folios away. */
static void make_scarce(struct plan *p, struct sim_rng *r)
{
	for (unsigned f = 0; f < p->nr_files; f++)
		p->file[f].size = 700 * KIB + sim_below(r, 900 * KIB);
	for (unsigned i = 0; i < p->nr_ops; i++) {
		struct op *op = &p->op[i];

		if (sim_chance(r, 1, 2))
			op->pos = place(r, p->file[op->file].size, p->file[op->file].size);
		if (op->kind == OP_READ && sim_chance(r, 1, 2))
			op->len = OP_BYTES;
		if (op->kind == OP_TRUNCATE && sim_chance(r, 3, 4))
			op->pos += 600 * KIB;
	}
}

/* Now and then little but syncs of a few blocks, whose flushes fail: each of them ends while another is at work. */
static void make_sync_storm(struct plan *p, struct sim_rng *r)
{
	for (unsigned i = 0; i < p->nr_ops; i++) {
		struct op *op = &p->op[i];

		op->file = 0;
		if (sim_chance(r, 1, 4))
			op->kind = p->faults && sim_chance(r, 1, 2) ? OP_RESOLVE : OP_FDATASYNC;
		else if (sim_chance(r, 1, 2))
			op->kind = OP_WRITE;
		if (op->kind == OP_WRITE) {
			op->pos = sim_below(r, 16) * 1024;
			op->len = 512 * (1 + sim_below(r, 4));
			op->flags = 0;
		}
	}
	if (sim_chance(r, 1, 2))
		p->disk.event_spread_ns = 3 * (p->disk.latency_ns + p->disk.latency_spread_ns);
	if (p->faults)
		p->disk.flush_eio = 100 + (unsigned)sim_below(r, 500);
	if (p->faults && sim_chance(r, 1, 2))
		p->disk.write_eio = 100 + (unsigned)sim_below(r, 700);
}

/* Now and then a log: small appends one after the other while everybody else makes it durable, in wide granules of accounting. */
static void make_log(struct plan *p, struct sim_rng *r)
{
	uint64_t most = PICK(r, 100, 700, 3000);

	p->cache.accounting = sim_chance(r, 1, 4) ? IOMAP_ACCT_BLOCK : sim_chance(r, 1, 2) ? IOMAP_ACCT_PAGE : IOMAP_ACCT_FOLIO;
	p->file[0].block = p->disk.dio_align;
	for (unsigned i = 0; i < p->nr_ops; i++) {
		struct op *op = &p->op[i];

		if (sim_chance(r, 1, 8))
			continue;
		op->file = 0;
		op->flags = 0;
		op->kind = op->thread == 0 || sim_chance(r, 1, 3) ? OP_APPEND : sim_chance(r, 1, 4) ? OP_SLEEP : OP_FDATASYNC;
		op->len = op->kind == OP_SLEEP ? sim_below(r, 100) : 1 + sim_below(r, most);
	}
	if (sim_chance(r, 1, 2))
		p->disk.event_spread_ns = 3 * (p->disk.latency_ns + p->disk.latency_spread_ns);
}

/* Reads and writes that leave nothing behind, the three ways to flush them, and advice of all kinds, in the place of other operations. */
static void with_dontcache(struct plan *p, struct sim_rng *r)
{
	unsigned share = (unsigned)PICK(r, 25, 50, 100);

	p->cache.dontcache = (enum iomap_dontcache)sim_below(r, 3);
	for (unsigned i = 0; i < p->nr_ops; i++) {
		struct op *op = &p->op[i];

		if ((op->kind == OP_WRITE || op->kind == OP_APPEND || op->kind == OP_READ) && sim_chance(r, share, 100))
			op->flags |= IOMAP_RWF_DONTCACHE;
		if (op->kind == OP_READ && i && p->op[i - 1].kind == OP_READ && p->op[i - 1].thread == op->thread && sim_chance(r, 1, 2)) {
			op->file = p->op[i - 1].file;           /* one goes on where the other ended */
			op->pos = p->op[i - 1].pos + p->op[i - 1].len;
		}
		if (op->kind != OP_CHECK && op->kind != OP_SLEEP && sim_chance(r, 1, 20)) {
			op->kind = sim_chance(r, 1, 4) ? OP_POLICY : OP_ADVISE;
			op->flags = 0;
		}
	}
	p->nothing_behind = share == 100;
	/* What a cut or a punch makes clean, or takes away under a read, is left to reclaim. */
	for (unsigned i = 0; i < p->nr_ops; i++)
		p->nothing_behind &= p->op[i].kind != OP_TRUNCATE && p->op[i].kind < OP_HOLES;
}

/* In half of the seeds holes are made, filled and looked for; some of these kinds, so that they meet. */
static void make_holes(struct plan *p, struct sim_rng *r)
{
	static const int sync_flags[] = {
		IOMAP_SYNC_DURABLE, IOMAP_SYNC_DURABLE, IOMAP_SYNC_WRITE, IOMAP_SYNC_WRITE | IOMAP_SYNC_WAIT_AFTER,
		IOMAP_SYNC_WAIT_BEFORE | IOMAP_SYNC_WRITE | IOMAP_SYNC_WAIT_AFTER, IOMAP_SYNC_WAIT_BEFORE,
	};
	enum op_kind some[OP_KINDS - OP_HOLES];
	unsigned nr = 0, one_in = 3 + (unsigned)sim_below(r, 6);

	for (unsigned k = OP_HOLES; k < OP_KINDS; k++)
		if (sim_chance(r, 2, 3))
			some[nr++] = (enum op_kind)k;
	for (unsigned i = 0; nr && i < p->nr_ops; i++) {
		struct op *op = &p->op[i];

		if (!sim_chance(r, 1, one_in))
			continue;
		op->kind = some[sim_below(r, nr)];
		op->flags = op->kind == OP_SYNC_RANGE ? sync_flags[sim_below(r, 6)] : 0;
		op->keep_size = sim_chance(r, 1, 2);
		if (sim_chance(r, 1, 4))
			op->len *= 1 + sim_below(r, 8);
		if (sim_chance(r, 1, 3)) {
			op->pos = op->pos / 4096 * 4096;
			op->len = (op->len + 4095) / 4096 * 4096;
		}
	}
}

/* Some reads and writes go around the cache, or through it at once; half of those are as the device wants them. */
static void make_direct(struct plan *p, struct sim_rng *r)
{
	uint64_t share = PICK(r, 8, 3, 2, 1), direct = PICK(r, 1, 2, 3);

	for (unsigned f = 0; f < p->nr_files; f++)
		p->file[f].unstable = sim_chance(r, 1, 5);
	for (unsigned i = 0; i < p->nr_ops; i++) {
		struct op *op = &p->op[i];

		if ((op->kind != OP_READ && op->kind != OP_WRITE && op->kind != OP_APPEND) || !sim_chance(r, 1, share))
			continue;
		if (op->kind == OP_READ || sim_chance(r, direct, 4)) {
			op->flags |= IOMAP_RWF_DIRECT;
		} else {
			op->flags |= IOMAP_RWF_WRITETHROUGH;
			op->flags &= ~(IOMAP_RWF_NOWAIT | IOMAP_RWF_DONTCACHE);
		}
		p->nothing_behind = false;
		if (op->flags & IOMAP_RWF_DIRECT && sim_chance(r, 1, 2)) {
			uint64_t unit = sim_chance(r, 1, 2) ? p->disk.dio_align : p->file[op->file].block;

			op->pos = op->pos / unit * unit;
			if (sim_chance(r, 2, 3))
				op->len = (op->len + unit - 1) / unit * unit;
			if (op->len > OP_BYTES)
				op->len = OP_BYTES;
			op->pieces = op->pieces && sim_chance(r, 1, 4);
		} else if (sim_chance(r, 1, 2)) {
			op->skew = 1 + (unsigned)sim_below(r, 600);
		}
	}
}

/* Now and then an engine maps some of the files. No power cuts then: it keeps its metadata in memory. */
static void plan_engine(struct plan *p, struct sim_rng *r)
{
	static const unsigned ways[] = { 0, 0, EXTFS_EARLY, EXTFS_EARLY_NEW, EXTFS_ALWAYS_COW };
	uint64_t block = PICK(r, 512, 1024, 4096, 4096);

	p->engine = true;
	block = block < p->disk.dio_align ? p->disk.dio_align : block;
	p->extfs = (struct extfs_params){
		.size = (block == 512 ? 4096 : 8192) * KIB, .block = (uint32_t)block, .seed = sim_rng_next(r),
		.flags = ways[sim_below(r, 5)] | (sim_chance(r, 1, 2) ? EXTFS_CHOP : 0) | (sim_chance(r, 1, 2) ? EXTFS_COW_UNWRITTEN : 0),
		.inline_max = sim_chance(r, 1, 3) ? (uint32_t)sim_below(r, block) : 0,
		.extent_max = sim_chance(r, 1, 2) ? 1 + (uint32_t)sim_below(r, 20) : 0,
		.boundary = sim_chance(r, 1, 3) ? 2 + (uint32_t)sim_below(r, 30) : 0,
	};
	p->cloned = sim_chance(r, 1, 2);
	for (unsigned f = 0; f < p->nr_files; f++) {
		p->on_engine[f] = !f || sim_chance(r, 2, 3);
		if (p->on_engine[f])
			p->file[f].block = (uint32_t)block;
		if (p->on_engine[f] && sim_chance(r, 1, 4))     /* small enough to be inline at first */
			p->file[f].size %= block;
	}
	if (p->disk.capacity)
		p->disk.capacity += p->extfs.size;
	if (!p->faults)
		return;
	if (p->disk.bad_len && sim_chance(r, 1, 2))
		p->disk.bad_file = p->nr_files;                 /* the engine's device */
	for (unsigned i = 0; i < EXTFS_BAD_MAP; i++) {
		if (!sim_chance(r, 1, 4))
			continue;
		p->engine_fault[i].error = sim_chance(r, 1, 2) ? -EIO : -ENOSPC;
		p->engine_fault[i].from = sim_below(r, 100 * KIB);
		p->engine_fault[i].to = sim_chance(r, 1, 2) ? UINT64_MAX : p->engine_fault[i].from + sim_below(r, 100 * KIB);
		p->engine_fault[i].skip = (unsigned)sim_below(r, 20);
		p->engine_fault[i].times = (unsigned)sim_below(r, 5);
	}
}

void plan_make(const struct world_spec *spec, struct plan *p)
{
	struct sim_rng r, scarce, holes, dontcache, engine, around, log;
	bool is_scarce;

	memset(p, 0, sizeof(*p));
	sim_rng_seed(&r, spec->seed, 100);
	p->nr_files = 1 + (unsigned)sim_below(&r, sim_chance(&r, 1, 2) ? 1 : WORLD_FILES);
	p->nr_threads = spec->threads ? spec->threads : 2 + (unsigned)sim_below(&r, WORLD_THREADS - 1);
	plan_cache(p, &r);
	plan_disk(p, &r);
	for (unsigned f = 0; f < p->nr_files; f++) {
		uint64_t block = PICK(&r, 512, 512, 1024, 4096, 4096, 16384);

		p->file[f].block = (uint32_t)(block < p->disk.dio_align ? p->disk.dio_align : block);
		p->file[f].size = sim_chance(&r, 1, 3) ? 0 : sim_below(&r, PICK(&r, 600, 10000, 100000, 400000));
	}
	plan_ops(p, &r);
	sim_rng_seed(&scarce, spec->seed, 101);
	is_scarce = sim_chance(&scarce, 1, 8);
	if (is_scarce)
		make_scarce(p, &scarce);
	sim_rng_seed(&holes, spec->seed, 102);
	if (sim_chance(&holes, 1, 2))
		make_holes(p, &holes);
	p->idle_end = sim_chance(&scarce, 1, 2) && p->cache.dirty_writeback_ms != IOMAP_NEVER;
	if (spec->faults)
		plan_faults(p, &r);
	if (sim_chance(&scarce, 1, 8))
		make_sync_storm(p, &scarce);
	sim_rng_seed(&log, spec->seed, 106);
	if (sim_chance(&log, 1, 12))
		make_log(p, &log);
	sim_rng_seed(&dontcache, spec->seed, 103);
	if (sim_chance(&dontcache, 1, 3))
		with_dontcache(p, &dontcache);
	sim_rng_seed(&engine, spec->seed, 105);
	if (!spec->crash && !is_scarce && sim_chance(&engine, 1, 3))
		plan_engine(p, &engine);
	sim_rng_seed(&around, spec->seed, 104);
	if (sim_chance(&around, 2, 5))
		make_direct(p, &around);
	p->disk.short_bytes = !spec->crash;     /* an image of half a sector would need an oracle of bytes */
	if (spec->crash)
		p->power_off_at = 500 + sim_below(&r, sim_chance(&r, 1, 2) ? 6000 : 40000);
}

/* One thread, one of everything: the script whose n-th allocation, request, flush and thread start fail in sweeps. */
void plan_make_script(struct plan *p)
{
	static const struct op ops[] = {
		{ .kind = OP_WRITE, .pos = 0, .len = 9000 }, { .kind = OP_READ, .pos = 100, .len = 5000 },
		{ .kind = OP_APPEND, .len = 3000 }, { .kind = OP_FSYNC }, { .kind = OP_WRITE, .pos = 5, .len = 600 },
		{ .kind = OP_WRITE, .pos = 70000, .len = 40000 }, { .kind = OP_DONTNEED, .pos = 0, .len = 200000 },
		{ .kind = OP_READ, .pos = 0, .len = 65536 }, { .kind = OP_TRUNCATE, .pos = 71111 },
		{ .kind = OP_WRITE, .pos = 72000, .len = 100, .flags = IOMAP_RWF_DSYNC }, { .kind = OP_SYNC },
		{ .kind = OP_TRUNCATE, .pos = 150000 }, { .kind = OP_FDATASYNC }, { .kind = OP_DROP },
		{ .kind = OP_READ, .pos = 60000, .len = 65536 }, { .kind = OP_WRITE, .pos = 61000, .len = 65000 },
		{ .kind = OP_REOPEN }, { .kind = OP_APPEND, .len = 7777 }, { .kind = OP_SLEEP, .len = 300 },
		{ .kind = OP_READ, .pos = 100000, .len = 65536 }, { .kind = OP_FSYNC },
		{ .kind = OP_WRITE, .pos = 30000, .len = 50000, .flags = IOMAP_RWF_DONTCACHE }, { .kind = OP_SLEEP, .len = 300 },
		{ .kind = OP_READ, .pos = 40000, .len = 65536, .flags = IOMAP_RWF_DONTCACHE }, { .kind = OP_FSYNC },
		{ .kind = OP_WRITE, .pos = 3000, .len = 50000 }, { .kind = OP_PUNCH, .pos = 4000, .len = 20000 },
		{ .kind = OP_ZERO, .pos = 30000, .len = 9000 }, { .kind = OP_SEEK_DATA, .pos = 5000 },
		{ .kind = OP_SYNC_RANGE, .pos = 0, .len = 40000, .flags = IOMAP_SYNC_DURABLE }, { .kind = OP_SEEK_HOLE, .pos = 0 },
		{ .kind = OP_ALLOCATE, .pos = 190000, .len = 30000 }, { .kind = OP_ZERO, .pos = 215000, .len = 10000 },
		{ .kind = OP_READ, .pos = 0, .len = 65536 }, { .kind = OP_FSYNC },
		{ .kind = OP_WRITE, .pos = 4096, .len = 8192, .flags = IOMAP_RWF_DIRECT },
		{ .kind = OP_WRITE, .pos = 30001, .len = 9000, .flags = IOMAP_RWF_DIRECT, .skew = 3 },
		{ .kind = OP_READ, .pos = 29000, .len = 12000, .flags = IOMAP_RWF_DIRECT, .skew = 1 },
		{ .kind = OP_APPEND, .len = 5000, .flags = IOMAP_RWF_DIRECT },
		{ .kind = OP_WRITE, .pos = 9000, .len = 3000, .flags = IOMAP_RWF_WRITETHROUGH }, { .kind = OP_FSYNC },
	};

	memset(p, 0, sizeof(*p));
	p->cache = (struct iomap_cache_params)IOMAP_CACHE_PARAMS_INIT;
	p->cache.memory_bytes = 1024 * KIB;
	p->cache.max_folio_bytes = 65536;
	p->cache.dirty_bytes = 256 * KIB;
	p->cache.dirty_writeback_ms = 50;
	p->cache.dirty_expire_ms = 100;
	p->cache.queue_depth = 4;
	p->disk = (struct sim_disk_params){ .dio_align = 512, .latency_ns = 20000, .latency_spread_ns = 20000, .workers = 2,
					    .queue = 8, .can_allocate = true };
	p->nr_files = p->nr_threads = 1;
	p->file[0].block = 512;
	p->file[0].size = 20000;
	p->nr_ops = sizeof(ops) / sizeof(ops[0]);
	memcpy(p->op, ops, sizeof(ops));
}
