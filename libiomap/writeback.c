/*
 * writeback.c - dirty blocks become write requests
 *
 * A pass walks the folios that are marked, in file order. Of each it claims what is dirty (under the folio lock, all at once:
 * dirty -> in flight, charges moved), lets the lock go, and cuts the claim into runs. Neighbouring runs, also of different
 * folios, share a request up to the device's largest size; requests are given to the device in batches.
 *
 * Blocks below the device's size are written in any order. Those beyond it extend the file, and a crash must never show a
 * size that covers bytes which were not written: so they go under extend_lock, in ascending order, one request at
 * a time, each starting from the first dirty block at the device's size.
 *
 *      |------------- device size ---|---- dirty beyond ----|  i_size
 *       any order, any depth           one after the other
 *
 * A sync pass first copies the DIRTY marks to TOWRITE and visits those only, so later writers cannot keep it busy; a dirty
 * block that is in flight is waited for and then written again.
 *
 * Invariants: a block is in one request at a time; nothing at or past i_size is written; no lock but extend_lock (and a caller's
 *             rwsem) is held when a request slot or the device is waited for.
 * Kernel:     iomap_writepages(), write_cache_pages(), file_write_and_wait_range(). Differs: claims are exact to the block, failed
 *             blocks stay dirty, innocent neighbours of a failed run are written.
 */
#include <errno.h>
#include "flusher.h"
#include "ioend.h"
#include "mutant.h"
#include "reclaim.h"
#include "writeback.h"

#define MAX_REQUEST UINT64_C(2097152)
#define BATCH 16
#define THROUGH_TRIES 4                 /* of a write-through write whose blocks others always have in flight, and fail */
#define AT_IT_AGAIN (-EALREADY)         /* no caller sees this */
#define SYNC_ROUNDS 4                   /* of a sync while others' writes of the same file fail */

struct pass {
	struct inode *inode;
	bool sync, retry_failed;
	bool try_locks;                         /* whoever has a folio locked is not waited for */
	bool through;                           /* waits for blocks of its range alone, not for their folios */
	bool one_by_one;                        /* each request is waited for, by p->wait, before the next */
	uint64_t max_bytes;
	struct io_wait *wait;                   /* who waits for this pass's requests, or NULL */
	struct ioend *open;
	struct iomap_writepage_ctx wpc;         /* an engine's mapping of the last run */
	struct iomap_request *queued[BATCH];
	unsigned nr_queued;
	uint64_t submitted;                     /* bytes */
	int error;                              /* of what write_beyond() wrote of the range */
};

static void pass_init(struct pass *p, struct inode *inode, bool sync, bool retry_failed, struct io_wait *wait)
{
	uint64_t max = inode->device->info.max_bytes;

	*p = (struct pass){ .inode = inode, .sync = sync, .retry_failed = retry_failed, .wait = wait };
	p->max_bytes = round_down(min_u64(max ? max : MAX_REQUEST, MAX_REQUEST), ifs_block_bytes(&inode->mapping.geom));
	p->wpc = (struct iomap_writepage_ctx){ .ops_priv = inode->ops_priv, .size = inode_size(inode), .wb_ctx = p };
	if (!p->max_bytes)      /* bdi.c cuts a block up for a device that takes less */
		p->max_bytes = ifs_block_bytes(&inode->mapping.geom);
}

static bool given_up(const struct pass *p) { return load_relaxed(&p->inode->cache->abandoned); }

static void submit_queued(struct pass *p)
{
	struct device_call call = cache_device_begin(p->inode->cache);

	wb_submit(p->inode->wb, p->inode->device, p->queued, p->nr_queued);
	cache_device_end(call);
	p->nr_queued = 0;
}

/* The engine's last word on the request that is about to go. False: it has ended instead. */
static bool engine_lets_go(struct pass *p)
{
	const struct iomap_writeback_ops *ops = p->inode->wb_ops;
	struct ioend *io = p->open;
	int ret = 0;

	if (ops && ops->writeback_submit)
		ret = ops->writeback_submit(&p->wpc, &io->seen);
	if (!ret)
		return true;
	p->open = NULL;
	ioend_fail(io, ret < 0 ? ret : -EIO);
	return false;
}

static void close_open(struct pass *p)
{
	if (!p->open || !engine_lets_go(p))
		return;
	p->submitted += p->open->len;
	ioend_close(p->open);
	p->queued[p->nr_queued++] = &p->open->req;
	p->open = NULL;
	if (p->nr_queued == BATCH || p->one_by_one)
		submit_queued(p);
	if (p->one_by_one && !MUTANT(M_EXTEND_NO_ORDER))
		io_wait_ended(p->wait);
}

static void submit_all(struct pass *p)
{
	close_open(p);
	if (p->nr_queued)
		submit_queued(p);
}

/* A folio's lock, never waited for with a slot in hand: its owner may wait for blocks whose claimer waits for a slot. */
static void lock_folio(struct pass *p, struct iomap_folio *f)
{
	if (folio_trylock(f))
		return;
	submit_all(p);
	folio_lock(p->inode->mapping.zone, f);
}

/* A slot for one more request. What this pass has gathered goes to the device before it waits for one. */
static struct ioend *get_slot(struct pass *p)
{
	struct wb *wb = p->inode->wb;

	for (;;) {
		uint64_t seen = wb_completions(wb);
		struct ioend *io = ioend_tryget(wb);

		if (io)
			return io;
		if (p->nr_queued)
			submit_queued(p);
		else
			wb_wait_completion(wb, seen, plat_now_ns() + NS_PER_S);
	}
}

/* The open request is one that takes the block at @pos, stored at @addr. */
static void open_at(struct pass *p, uint64_t pos, uint64_t addr, unsigned flags)
{
	struct ioend *io;

	if (p->open && !ioend_takes(p->open, pos, addr, flags, p->max_bytes))
		close_open(p);
	if (p->open)
		return;
	io = get_slot(p);
	ioend_start(io, p->inode, pos, addr, flags, p->wait);
	io->seen.priv = p->wpc.iomap.priv;
	p->open = io;
}

/*
 * Blocks [first, first + nr) of @f are in flight: into requests with them. @size: the file's, when they were
 * claimed.
 */
static void add_run(struct pass *p, struct iomap_folio *f, unsigned first, unsigned nr, uint64_t size)
{
	struct ifs_geometry *g = &p->inode->mapping.geom;
	uint64_t bs = ifs_block_bytes(g);

	while (nr) {
		uint64_t pos = folio_pos(f) + first * bs, len;
		unsigned n;

		open_at(p, pos, pos, 0);
		n = (unsigned)min_u64(nr, (p->max_bytes - p->open->len) / bs);
		len = n * bs;
		IOMAP_BUG_ON(pos >= size);
		if (pos + len > size && inode_ends_device(p->inode) && !MUTANT(M_TAIL_PAST_SIZE))
			len = size - pos;       /* the file's last block, at its exact length */
		ioend_add(p->open, f, first, n, len);
		first += n;
		nr -= n;
		if (len < n * bs)
			close_open(p);
	}
}

/* --- where an engine maps --------------------------------------------------------------------------------- */

ssize_t iomap_add_to_ioend(struct iomap_writepage_ctx *wpc, struct iomap_folio *f, uint64_t pos, uint64_t end_pos, uint64_t len)
{
	struct pass *p = wpc->wb_ctx;
	struct mapping *m = &p->inode->mapping;
	const struct iomap *map = &wpc->iomap;
	uint64_t bs = ifs_block_bytes(&m->geom), addr, done = 0, n;
	unsigned first = (unsigned)((pos - folio_pos(f)) >> m->geom.block_shift), flags = 0;

	if (!map->length || map->offset > pos || pos - map->offset >= map->length || (map->device && map->device != p->inode->device) ||
	    ((map->offset | map->length) & (bs - 1)))
		return -EIO;
	len = min_u64(len, map->length - (pos - map->offset));
	if (map->type == IOMAP_HOLE) {
		ioend_skip(p->inode, f, first, (unsigned)(len / bs), 0);
		return (ssize_t)len;
	}
	if ((map->type != IOMAP_MAPPED && map->type != IOMAP_UNWRITTEN) || (map->addr & (p->inode->device->info.block - 1)))
		return -EIO;
	flags |= map->type == IOMAP_UNWRITTEN ? IOMAP_IOEND_UNWRITTEN : 0;
	flags |= map->flags & IOMAP_F_SHARED ? IOMAP_IOEND_SHARED : 0;
	addr = map->addr + (pos - map->offset);
	for (; done < len; done += n) {
		open_at(p, pos + done, addr + done,
			flags | ((map->flags & IOMAP_F_BOUNDARY) && pos + done == map->offset ? IOMAP_IOEND_BOUNDARY : 0));
		n = min_u64(len - done, round_down(p->max_bytes - p->open->len, bs));
		ioend_add(p->open, f, first + (unsigned)(done / bs), (unsigned)(n / bs), n);
		p->open->seen.size = min_u64(p->open->len, end_pos - p->open->pos);
	}
	return (ssize_t)len;
}

/* As add_run(), each piece where the engine wants it. A block that it cannot place fails alone. */
static void map_run(struct pass *p, struct iomap_folio *f, unsigned first, unsigned nr, uint64_t size)
{
	struct ifs_geometry *g = &p->inode->mapping.geom;
	uint64_t bs = ifs_block_bytes(g);

	p->wpc.size = size;
	while (nr) {
		ssize_t n = p->inode->wb_ops->writeback_range(&p->wpc, f, folio_pos(f) + first * bs, nr * bs, size);
		unsigned blocks = n > 0 ? (unsigned)((uint64_t)n / bs) : 0;

		if (!blocks) {
			blocks = 1;
			ioend_skip(p->inode, f, first, 1, n < 0 ? (int)n : -EIO);
		}
		IOMAP_WARN_ON(blocks > nr);
		first += blocks;
		nr -= blocks;
	}
}

/*
 * Claims dirty blocks [from, to) of a locked folio and unlocks it; the claim's runs become requests. False: there was nothing to claim.
 * The stable hold keeps writers off until each request has its copy or reads in place.
 */
static bool claim_and_unlock(struct pass *p, struct iomap_folio *f, unsigned from, unsigned to, uint64_t size, bool *busy)
{
	struct inode *inode = p->inode;
	struct mapping *m = &inode->mapping;
	struct wb *wb = inode->wb;
	struct block_set set;
	unsigned first, nr, at = 0, claimed = 0;

	/* Both before the claim: who sees the blocks in flight must find the counts. */
	add_relaxed(&f->stable, 1);
	add_acq_rel(&inode->nr_inflight, 1);
	if (mapping_claim(m, f, from, to, p->retry_failed, &set, busy)) {
		uint64_t bs = ifs_block_bytes(&m->geom);

		while (block_set_next_run(&set, at, &first, &nr)) {
			claimed += nr;
			at = first + nr;
			inode_disturb_reads(inode, folio_pos(f) + first * bs, folio_pos(f) + at * bs);
		}
		add_acq_rel(&inode->nr_inflight, claimed);
		rangeset_reserve(&inode->unflushed, 1 + claimed / 8);
	}
	folio_unlock(m->zone, f);
	for (at = 0; claimed && block_set_next_run(&set, at, &first, &nr); at = first + nr)
		(inode->mapped ? map_run : add_run)(p, f, first, nr, size);
	sub_acq_rel(&f->stable, 1);
	folio_wake(m->zone, f);
	if (sub_acq_rel(&inode->nr_inflight, 1) == 1)
		wb_poke(wb);    /* somebody may wait for the inode to be idle; it may be gone by now */
	return claimed;
}

/*
 * First block of @f that may not be written in any order, because it ends beyond the device's size; or the last
 * with data, + 1.
 */
static unsigned in_place_end(const struct inode *inode, const struct iomap_folio *f, uint64_t size)
{
	const struct ifs_geometry *g = &inode->mapping.geom;
	uint64_t stored = device_size(inode->device), pos = folio_pos(f);
	unsigned gb = ifs_granule_blocks(f, g), nr = ifs_blocks(f, g);

	if (!inode_ends_device(inode) || stored >= size)
		return size > pos ? (unsigned)min_u64(div_round_up(size - pos, ifs_block_bytes(g)), nr) : 0;
	return stored > pos ? (unsigned)min_u64((stored - pos) >> g->block_shift, nr) / gb * gb : 0;
}

struct block_wait { struct mapping *m; struct iomap_folio *f; unsigned first, nr; };

static bool blocks_done(void *arg)
{
	struct block_wait *w = arg;

	return !ifs_any(w->f, &w->m->geom, IFS_INFLIGHT, w->first, w->nr);
}

/*
 * Waits until no block of @f in [start, end), and with @with_page none that shares a page or granule with them, is in flight. Under
 * the folio lock, so that no more are put in flight, and only where somebody else has some there.
 */
static void wait_blocks(struct mapping *m, struct iomap_folio *f, uint64_t start, uint64_t end, bool with_page)
{
	struct block_wait w = { .m = m, .f = f };
	unsigned group;

	folio_lock(m->zone, f);
	start = max_u64(start, folio_pos(f));
	end = min_u64(end, folio_pos(f) + folio_bytes(f));
	if (folio_mapping(f) == m && start < end) {
		group = with_page ? ifs_exclusive_blocks(f, &m->geom) : 1;
		w.first = (unsigned)((start - folio_pos(f)) >> m->geom.block_shift) / group * group;
		w.nr = (unsigned)round_up(((end - 1 - folio_pos(f)) >> m->geom.block_shift) + 1, group) - w.first;
		if (!blocks_done(&w))
			wait_until(&m->zone->waits, f, &f->flags, FOLIO_WAITERS, blocks_done, &w);
	}
	folio_unlock(m->zone, f);
}

/*
 * One folio's part of [start, end), as far as it may be written in any order. A sync pass that meets a dirty block in flight waits for that
 * and takes it in a second round; whoever else may have taken it meanwhile, it is on its way. Returns the page behind the folio.
 */
static pgoff_t write_folio(struct pass *p, struct iomap_folio *f, pgoff_t at, uint64_t start, uint64_t end)
{
	struct inode *inode = p->inode;
	struct mapping *m = &inode->mapping;
	pgoff_t next = at + folio_pages(f);

	for (unsigned round = 0; round < 2; round++) {
		uint64_t size;
		unsigned from = 0, to;
		bool busy;

		if (!p->try_locks)
			lock_folio(p, f);
		else if (!folio_trylock(f))
			break;
		if (folio_mapping(f) != m || !folio_is_dirty(f)) {
			folio_unlock(m->zone, f);
			break;
		}
		next = folio_index(f) + folio_pages(f);
		size = inode_size(inode);
		to = in_place_end(inode, f, size);
		if (start > folio_pos(f))
			from = (unsigned)((start - folio_pos(f)) >> m->geom.block_shift);
		if (end - folio_pos(f) < folio_bytes(f))
			to = (unsigned)min_u64(to, div_round_up(end - folio_pos(f), ifs_block_bytes(&m->geom)));
		/*
		 * TOWRITE is every sync pass's: it goes with DIRTY, once all is claimed and WRITEBACK is there for the others
		 * to wait for, and no sooner.
		 */
		if (MUTANT(M_TOWRITE_TAKEN))
			mapping_clear_towrite(m, f);
		claim_and_unlock(p, f, from, to, size, &busy);
		if (!p->sync || !busy || MUTANT(M_SYNC_SKIPS_BUSY))
			break;
		submit_all(p);
		if (p->through)
			wait_blocks(m, f, start, end, true);
		else
			folio_wait_writeback(m->zone, f);
	}
	return next;
}

/* What lies below the device's size. Returns the page to go on from, UINT64_MAX at the end of the range. */
static pgoff_t write_in_place(struct pass *p, uint64_t start, uint64_t end, uint64_t quota)
{
	struct mapping *m = &p->inode->mapping;
	enum xa_mark mark = p->sync ? XA_MARK_TOWRITE : XA_MARK_DIRTY;
	pgoff_t at = start >> PAGE_SHIFT, last = (end - 1) >> PAGE_SHIFT;
	struct iomap_folio *f;

	while (at <= last && !given_up(p) && (f = mapping_next_marked(m, &at, last, mark))) {
		at = write_folio(p, f, at, start, end);
		folio_put(m->zone, f);
		if (p->submitted + (p->open ? p->open->len : 0) >= quota)
			return at;
		if (!at)
			break;
	}
	return UINT64_MAX;
}

/*
 * The first dirty run of blocks that ends beyond both the device's size and @cursor, and begins before @end: its folio locked and
 * referenced, its blocks in [*from, *to) by the file's size *@isize. NULL: there is none.
 */
static struct iomap_folio *find_beyond(struct pass *p, uint64_t cursor, uint64_t end, uint64_t *isize, unsigned *from, unsigned *to)
{
	struct inode *inode = p->inode;
	struct mapping *m = &inode->mapping;
	uint64_t stored = device_size(inode->device), bs = ifs_block_bytes(&m->geom);
	pgoff_t at = max_u64(stored, cursor) >> PAGE_SHIFT;
	struct iomap_folio *f;

	while ((f = mapping_next_marked(m, &at, UINT64_MAX >> PAGE_SHIFT, XA_MARK_DIRTY))) {
		uint64_t size, pos;
		unsigned nr, gb, b;

		lock_folio(p, f);
		if (folio_mapping(f) != m) {    /* it went meanwhile: look again */
			folio_unlock(m->zone, f);
			folio_put(m->zone, f);
			continue;
		}
		size = inode_size(inode);
		pos = folio_pos(f);
		gb = ifs_granule_blocks(f, &m->geom);
		nr = size > pos && size > stored ? (unsigned)min_u64(div_round_up(size - pos, bs), ifs_blocks(f, &m->geom)) : 0;
		b = stored > pos ? (unsigned)min_u64((stored - pos) / bs, nr) / gb * gb : 0;
		if (cursor > pos + b * bs)
			b = (unsigned)min_u64((cursor - pos) / bs, nr);
		b = ifs_next(f, &m->geom, IFS_DIRTY, b, nr);
		if (b < nr && pos + b * bs < end) {
			*isize = size;
			*from = b;
			for (*to = b + 1; *to < nr && ifs_block_set(f, &m->geom, IFS_DIRTY, *to); )
				++*to;
			return f;
		}
		at = folio_index(f) + folio_pages(f);
		folio_unlock(m->zone, f);
		folio_put(m->zone, f);
		if (b < nr || !nr)
			break;
	}
	return NULL;
}

void writeback_settle_end(struct inode *inode)
{
	struct mapping *m = &inode->mapping;
	uint64_t stored = device_size(inode->device), unit = max_u64(ifs_block_bytes(&m->geom), PAGE_BYTES);
	struct iomap_folio *f;
	bool busy = stored & (unit - 1);

	lockdep_assert_held(&inode->extend_lock);
	while (busy && (f = mapping_get_locked(m, stored >> PAGE_SHIFT))) {
		unsigned group = ifs_exclusive_blocks(f, &m->geom);
		unsigned b = (unsigned)((stored - folio_pos(f)) >> m->geom.block_shift) / group * group;

		busy = ifs_any(f, &m->geom, IFS_INFLIGHT, b, group);
		folio_unlock(m->zone, f);
		if (busy)
			folio_wait_writeback(m->zone, f);
		folio_put(m->zone, f);
	}
}

/*
 * The one request beyond the device's size has ended. Returns the cursor to go on from: if it is written, the device's end, which may
 * lie in a block that is dirty again; else behind what failed. An error before @start is not the caller's.
 */
static uint64_t beyond_written(struct pass *p, uint64_t cursor, uint64_t start)
{
	int error = io_wait_for_all(p->wait);

	if (error && cursor > start && !p->error)
		p->error = error;
	return error ? cursor : 0;
}

/*
 * What lies beyond the device's size, up to @end: in ascending order, each request alone. Runs that follow each other without
 * a gap share one. A run that fails, or failed before and must not be tried yet, is left behind: fsync tells of it, and those
 * after it are written all the same.
 */
static void write_beyond(struct pass *p, uint64_t start, uint64_t end, uint64_t quota)
{
	struct inode *inode = p->inode;
	struct mapping *m = &inode->mapping;
	struct io_wait wait, *outer = p->wait;
	bool retry_failed = p->retry_failed;
	struct iomap_folio *f;
	uint64_t cursor = 0, size, settled = 0;
	unsigned from, to;

	if (!inode_ends_device(inode))
		return;
	submit_all(p);
	if (p->sync) {
		/*
		 * Also where nothing is beyond any more: somebody may have grown the device over blocks that this
		 * pass left out.
		 */
		mutex_lock(&inode->extend_lock);
		write_in_place(p, start, end, UINT64_MAX);
		submit_all(p);
	} else {
		uint64_t stored = device_size(inode->device);

		if (stored >= inode_size(inode) || !mutex_trylock(&inode->extend_lock))
			return;
	}
	inode_settle_device_size(inode);        /* if that fails, whoever needs it tries again */
	io_wait_init(&wait);
	p->wait = &wait;
	p->one_by_one = true;
	while (p->submitted < quota && !given_up(p) && (f = find_beyond(p, cursor, end, &size, &from, &to))) {
		uint64_t bs = ifs_block_bytes(&m->geom), pos = folio_pos(f);
		unsigned group = ifs_exclusive_blocks(f, &m->geom), gb = ifs_granule_blocks(f, &m->geom);
		bool busy;

		/*
		 * What the open request was made of has perhaps been written behind since, in a granule that the cursor has passed: so it
		 * goes, and the walk begins again from the device's new end, unless this run is what comes next.
		 */
		if (p->open && p->open->pos + p->open->len != pos + from * bs && !MUTANT(M_GRANULE_PASSED)) {
			folio_unlock(m->zone, f);
			folio_put(m->zone, f);
			submit_all(p);
			cursor = beyond_written(p, cursor, start);
			continue;
		}
		/* An older request for one of these blocks must end first: it ends where the file ended then. */
		if (ifs_any(f, &m->geom, IFS_INFLIGHT, from / group * group, (unsigned)round_up(to, group) - from / group * group)) {
			folio_unlock(m->zone, f);
			submit_all(p);
			folio_wait_writeback(m->zone, f);
			folio_put(m->zone, f);
			continue;
		}
		if (!p->open && settled != device_size(inode->device)) {
			folio_unlock(m->zone, f);
			folio_put(m->zone, f);
			settled = device_size(inode->device);
			writeback_settle_end(inode);
			continue;
		}
		/* What comes before the range is written because it must come first; nobody asked to try it again. */
		if (pos + from * bs < start && start < pos + to * bs)
			to = (unsigned)((start - pos) / bs) > from ? (unsigned)((start - pos) / bs) : to;
		cursor = pos + round_up(to, gb) * bs;   /* a granule is claimed as a whole, or not at all */
		p->retry_failed = retry_failed && cursor > start;
		if (claim_and_unlock(p, f, from, to, size, &busy) && !p->open)
			cursor = beyond_written(p, cursor, start);
		folio_put(m->zone, f);
	}
	submit_all(p);
	if (MUTANT(M_EXTEND_NO_ORDER))
		io_wait_ended(&wait);
	if (!p->error && (cursor > start || !cursor))
		p->error = io_wait_for_all(&wait);
	io_wait_fini(&wait);
	p->wait = outer;
	p->one_by_one = false;
	p->retry_failed = retry_failed;
	mutex_unlock(&inode->extend_lock);
}

uint64_t writeback_some(struct inode *inode, uint64_t quota, bool retry_failed)
{
	struct pass p;
	pgoff_t next;

	pass_init(&p, inode, false, retry_failed, NULL);
	next = write_in_place(&p, load_relaxed(&inode->writeback_index) << PAGE_SHIFT, UINT64_MAX, quota);
	/* No wrap within one pass: folio locks are taken in ascending order. */
	store_relaxed(&inode->writeback_index, next == UINT64_MAX ? 0 : next);
	if (next == UINT64_MAX)
		write_beyond(&p, 0, UINT64_MAX, quota);
	submit_all(&p);
	return p.submitted;
}

uint64_t writeback_start(struct inode *inode, uint64_t start, uint64_t end, uint64_t quota, bool beyond)
{
	struct pass p;

	if (end <= start)
		return 0;
	pass_init(&p, inode, false, false, NULL);
	p.try_locks = !beyond;
	if (write_in_place(&p, start, end, quota) == UINT64_MAX && beyond)
		write_beyond(&p, start, end, quota);
	submit_all(&p);
	return p.submitted;
}

/* Writes the range once, and waits. AT_IT_AGAIN: others had part of it, failed somewhere in the file, and are writing it again. */
static int through_once(struct inode *inode, uint64_t start, uint64_t end)
{
	struct mapping *m = &inode->mapping;
	uint64_t failures = inode_failures(inode);
	pgoff_t at = start >> PAGE_SHIFT, last = (end - 1) >> PAGE_SHIFT;
	bool keep = inode->cache->error_policy == IOMAP_ERROR_KEEP_DIRTY;
	struct iomap_folio *f;
	struct io_wait wait;
	struct pass p;
	int own, error;
	bool others;

	io_wait_init(&wait);
	pass_init(&p, inode, true, true, &wait);
	p.through = true;
	mapping_tag_towrite(m, at, last);
	write_in_place(&p, start, end, UINT64_MAX);
	write_beyond(&p, start, end, UINT64_MAX);
	submit_all(&p);
	own = io_wait_for_all(&wait);
	io_wait_fini(&wait);
	if (!own)
		own = p.error;
	/* What others took before this pass could; they may still be at it. */
	while (!MUTANT(M_THROUGH_OTHERS) && at <= last && (f = mapping_next_marked(m, &at, last, XA_MARK_WRITEBACK))) {
		wait_blocks(m, f, start, end, false);
		at += folio_pages(f);
		folio_put(m->zone, f);
	}
	error = keep ? writeback_failed(inode, start, end) : own;
	if (error)
		return own ? own : error;
	others = p.submitted < end - start && !inode_no_failure_since(inode, failures);
	if (!keep)                      /* a failed block does not show: where others carried some, their errors count */
		return others ? load_relaxed(&inode->wb->last_error) : 0;
	if ((!own && !others) || MUTANT(M_THROUGH_RETRIED))
		return 0;
	/* No block shows it, but somebody may be at it again: only what has turned clean since is known to be written. */
	at = start >> PAGE_SHIFT;
	f = mapping_next_busy(m, &at, last);
	if (!f)
		return 0;
	folio_put(m->zone, f);
	return own ? own : AT_IT_AGAIN;
}

int writeback_through(struct inode *inode, uint64_t start, uint64_t end)
{
	int error = AT_IT_AGAIN;

	for (unsigned i = 0; i < THROUGH_TRIES && error == AT_IT_AGAIN; i++)
		error = through_once(inode, start, end);
	return error == AT_IT_AGAIN ? load_relaxed(&inode->wb->last_error) : error;
}

static void wait_range(struct mapping *m, uint64_t start, uint64_t end)
{
	pgoff_t at = start >> PAGE_SHIFT, last = (end - 1) >> PAGE_SHIFT;
	struct iomap_folio *f;

	while (at <= last && (f = mapping_next_marked(m, &at, last, XA_MARK_WRITEBACK))) {
		pgoff_t next = at + folio_pages(f);

		folio_wait_writeback(m->zone, f);
		reclaim_drop_behind(m, f);      /* while we held it the completion's thread could not */
		folio_put(m->zone, f);
		if (!next)
			break;
		at = next;
	}
}

void writeback_wait_range(struct inode *inode, uint64_t start, uint64_t end)
{
	if (start < end)
		wait_range(&inode->mapping, start, end);
}

void writeback_start_range(struct inode *inode, uint64_t start, uint64_t end)
{
	struct pass p;

	if (start >= end || !mapping_is_marked(&inode->mapping, XA_MARK_DIRTY))
		return;
	pass_init(&p, inode, false, true, NULL);
	write_in_place(&p, start, end, UINT64_MAX);
	write_beyond(&p, start, end, UINT64_MAX);
	submit_all(&p);
}

int writeback_failed(struct inode *inode, uint64_t start, uint64_t end)
{
	struct mapping *m = &inode->mapping;
	pgoff_t at = start >> PAGE_SHIFT, last = (end - 1) >> PAGE_SHIFT;
	struct iomap_folio *f;
	int error = 0;

	/* Raised before a block that failed leaves flight: who waited for it sees the count. */
	if (!load_acquire(&inode->write_failures))
		return 0;
	mapping_settle(m);
	while (!error && at <= last && (f = mapping_next_marked(m, &at, last, XA_MARK_DIRTY))) {
		pgoff_t next = at + folio_pages(f);

		if (folio_flags(f) & FOLIO_FAILED) {
			folio_lock(m->zone, f);
			if (folio_mapping(f) == m && (folio_flags(f) & FOLIO_FAILED)) {
				unsigned nr = ifs_blocks(f, &m->geom), from = 0, to = nr;

				if (start > folio_pos(f))
					from = (unsigned)min_u64((start - folio_pos(f)) >> m->geom.block_shift, nr);
				if (end > folio_pos(f) && end - folio_pos(f) < folio_bytes(f))
					to = (unsigned)div_round_up(end - folio_pos(f), ifs_block_bytes(&m->geom));
				if (from < to && ifs_any(f, &m->geom, IFS_FAILED, from, to - from))
					error = f->error ? f->error : -EIO;
			}
			folio_unlock(m->zone, f);
		}
		folio_put(m->zone, f);
		if (!next)
			break;
		at = next;
	}
	return error;
}

/* One round of a sync: what is dirty now is written and waited for. */
static void sync_round(struct inode *inode, uint64_t start, uint64_t end)
{
	struct mapping *m = &inode->mapping;
	struct pass p;

	if (mapping_is_marked(m, XA_MARK_DIRTY)) {
		pass_init(&p, inode, true, true, NULL);
		mapping_tag_towrite(m, start >> PAGE_SHIFT, (end - 1) >> PAGE_SHIFT);
		write_in_place(&p, start, end, UINT64_MAX);
		write_beyond(&p, start, end, UINT64_MAX);
		submit_all(&p);
	}
	if (!MUTANT(M_SYNC_NO_WAIT) || mapping_is_marked(m, XA_MARK_DIRTY))
		wait_range(m, start, end);
}

int writeback_range_sync(struct inode *inode, uint64_t start, uint64_t end)
{
	int error = 0;

	if (end <= start)
		return 0;
	/*
	 * A block whose write failed may be in flight again already, by another pass: then it is neither failed nor known to be
	 * written. A round during which some write of the file failed is therefore no proof, unless it shows the error.
	 */
	for (unsigned round = 0; round < SYNC_ROUNDS; round++) {
		uint64_t failures = inode_failures(inode);

		sync_round(inode, start, end);
		error = writeback_failed(inode, start, end);
		if (error || inode->cache->error_policy == IOMAP_ERROR_DROP || inode_no_failure_since(inode, failures))
			return error;
	}
	error = load_relaxed(&inode->wb->last_error);
	return error ? error : -EIO;
}
