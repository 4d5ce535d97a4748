/*
 * ioend.c - one write request, from its first block to its completion
 *
 * A fixed number of them is made with the backing device: writing out never waits for memory, and their number is the queue
 * depth. A request of up to 64 KiB is copied when it is closed, which ends its blocks' need to stay unchanged; a larger one reads
 * folio memory, and each of its pieces counts in the folio's stable count until the end.
 *
 * Completion, in an order that others rely on: an engine's end_io() has run (endio.c); the range is noted as written but not
 * flushed; each block leaves flight (as failed: dirty again, or given up); a folio made by DONTCACHE that is clean now is left to
 * the reclaim thread; the folio references go; the inode's count of blocks in flight drops, after which the inode may be gone; last,
 * the slot is free and the device's waiters are told.
 *
 * Locking: none of its own; completions take list, tree, state, depth and leaf locks, allocate nothing, wait for nothing.
 * Kernel:  fs/iomap/ioend.c.
 */
#include <errno.h>
#include <string.h>
#include "endio.h"
#include "flusher.h"
#include "ioend.h"
#include "mutant.h"
#include "reclaim.h"
#include "throttle.h"

#define IOEND_TRIES 64                  /* short answers to one request before it counts as failed */

int ioend_pool_init(struct wb *wb)
{
	struct ioend *all;

	wb->ioend_bytes = wb->depth * sizeof(struct ioend);
	wb->ioend_memory = all = mem_alloc(&wb->zone->mem, wb->ioend_bytes);
	if (!all)
		return -ENOMEM;
	for (unsigned i = 0; i < wb->depth; i++)
		list_add_tail(&wb->free_ioends, &all[i].node);
	return 0;
}

struct ioend *ioend_tryget(struct wb *wb)
{
	struct ioend *io = NULL;

	mutex_lock(&wb->depth_lock);
	if (!list_empty(&wb->free_ioends)) {
		io = list_first(&wb->free_ioends, struct ioend, node);
		list_del(&io->node);
	}
	mutex_unlock(&wb->depth_lock);
	return io;
}

void ioend_start(struct ioend *io, struct inode *inode, uint64_t pos, uint64_t addr, unsigned flags, struct io_wait *wait)
{
	io->inode = inode;
	io->wait = wait;
	io->pos = pos;
	io->addr = addr;
	io->seen = (struct iomap_ioend){ .offset = pos, .addr = addr, .flags = flags, .ops_priv = inode->ops_priv };
	io->len = 0;
	io->copy = NULL;
	io->nr = 0;
	io->done = 0;
	io->tries = 0;
	io->flush_failures = load_acquire(&inode->flush_failures);
	if (wait)
		io_wait_add(wait);
}

bool ioend_takes(const struct ioend *io, uint64_t pos, uint64_t addr, unsigned flags, uint64_t max_bytes)
{
	if (flags & IOMAP_IOEND_BOUNDARY)
		return false;
	return io->pos + io->len == pos && io->addr + io->len == addr && (io->seen.flags & ~IOMAP_IOEND_BOUNDARY) == flags &&
	       io->nr < IOEND_PIECES &&
	       io->len + ifs_block_bytes(&io->inode->mapping.geom) <= max_bytes;
}

void ioend_add(struct ioend *io, struct iomap_folio *f, unsigned first, unsigned nr, uint64_t len)
{
	struct mapping *m = &io->inode->mapping;

	folio_get(f);
	add_relaxed(&f->stable, 1);
	io->piece[io->nr].folio = f;
	io->piece[io->nr].first = (uint16_t)first;
	io->piece[io->nr].nr = (uint16_t)nr;
	io->iov[io->nr++] = (struct iovec){ folio_addr(m->zone, f) + ((uint64_t)first << m->geom.block_shift), len };
	io->len += len;
}

static void end_stable(struct zone *z, struct iomap_folio *f)
{
	sub_acq_rel(&f->stable, 1);       /* the copy is done before a writer may change the bytes */
	folio_wake(z, f);
}

/* A write of the inode has failed: its own count is raised before its blocks say so. failure_end() when they have. */
static void failure_begin(struct inode *inode, int error)
{
	add_acq_rel(&inode->write_failing, 1);
	add_acq_rel(&inode->write_failures, 1);
	errseq_set(&inode->wb_err, error);
	flusher_write_failed(inode, error);
}

static void failure_end(struct inode *inode) { sub_acq_rel(&inode->write_failing, 1); }

void ioend_skip(struct inode *inode, struct iomap_folio *f, unsigned first, unsigned nr, int error)
{
	struct mapping *m = &inode->mapping;

	if (error)
		failure_begin(inode, error);
	mapping_complete(m, f, first, nr, error, inode->cache->error_policy == IOMAP_ERROR_KEEP_DIRTY);
	if (error)
		failure_end(inode);
	throttle_completed(inode->cache, inode->wb, nr * ifs_block_bytes(&m->geom));
	if (sub_acq_rel(&inode->nr_inflight, nr) == nr)
		wb_poke(inode->wb);
}

/* What became of a request's blocks. */
static void finish(struct ioend *io, int error)
{
	struct inode *inode = io->inode;
	struct mapping *m = &inode->mapping;
	struct zone *z = m->zone;
	bool keep = inode->cache->error_policy == IOMAP_ERROR_KEEP_DIRTY;
	bool failed = error;
	unsigned blocks = 0;

	if (!error) {
		if (!MUTANT(M_UNFLUSHED_NOT_NOTED))
			inode_note_written(inode, io->pos, io->pos + io->len, io->flush_failures);
		if (MUTANT(M_GOOD_CLEARS_ERROR))
			store_relaxed(&inode->wb_err, 0);
		store_relaxed(&inode->wb->last_good_ns, plat_now_ns());
	} else {
		failure_begin(inode, error);
	}
	for (unsigned i = 0; i < io->nr; i++) {
		struct iomap_folio *f = io->piece[i].folio;

		if (!io->copy)
			sub_acq_rel(&f->stable, 1);       /* mapping_complete() wakes */
		if (MUTANT(M_MERGED_ERROR_DROPPED) && i)
			error = 0;
		mapping_complete(m, f, io->piece[i].first, io->piece[i].nr, error, keep);
		reclaim_drop_behind_later(m, f);
		folio_put(z, f);
		blocks += io->piece[i].nr;
	}
	if (failed)
		failure_end(inode);
	throttle_completed(inode->cache, inode->wb, io->len);
	if (io->wait)
		io_wait_done(io->wait, error);
	sub_acq_rel(&inode->nr_inflight, blocks);       /* the inode may be gone from here on */
}

/* The rest of a short request, from a block boundary on. False: nothing was gained, it has failed. */
static bool advance(struct ioend *io, uint64_t got)
{
	uint64_t gain = round_down(got, io->inode->device->info.block), skip = gain;
	unsigned n = 0;

	if (!gain || ++io->tries > IOEND_TRIES)
		return false;
	for (int i = 0; i < io->req.iovcnt; i++) {
		struct iovec v = io->iov[i];
		uint64_t cut = min_u64(skip, v.iov_len);

		skip -= cut;
		if (cut < v.iov_len)
			io->iov[n++] = (struct iovec){ (char *)v.iov_base + cut, v.iov_len - cut };
	}
	io->done += gain;
	io->req.pos += gain;
	io->req.iovcnt = (int)n;
	return true;
}

bool ioend_resubmit(struct ioend *io)
{
	return wb_offer_again(io->inode->wb, io->inode->device, &io->req);
}

void ioend_finish(struct ioend *io, int error)
{
	struct wb *wb = io->inode->wb;

	finish(io, error);
	mutex_lock(&wb->depth_lock);
	list_add_head(&wb->free_ioends, &io->node);
	mutex_unlock(&wb->depth_lock);
	wb_completed(wb);
}

/* The request is over. An engine that wants to know is told first, by a thread that may sleep. */
static void ended(struct ioend *io, int error)
{
	struct inode *inode = io->inode;

	if (!inode->wb_ops || !inode->wb_ops->end_io || load_relaxed(&inode->cache->abandoned)) {
		ioend_finish(io, error);
		return;
	}
	if (MUTANT(M_END_IO_LATE)) {
		struct iomap_ioend seen = io->seen;

		seen.error = error;
		ioend_finish(io, error);
		inode->wb_ops->end_io(&seen);
		return;
	}
	io->seen.error = error;
	endio_queue(inode->cache, io);
}

static void ioend_done(struct iomap_request *req)
{
	struct ioend *io = container_of(req, struct ioend, req);
	struct iomap_cache *cache = io->inode->cache;
	int error = req->result < 0 ? (int)req->result : 0;

	if (!error && (uint64_t)req->result < io->len - io->done) {
		if (advance(io, (uint64_t)req->result)) {
			add_relaxed(&io->inode->device->stats.io_retries, 1);
			reclaim_offer_again(cache, io);
			return;
		}
		error = -EIO;
	}
	if (io->copy)
		copy_pool_put(&cache->copies, io->copy, io->len);
	ended(io, error);
}

void ioend_fail(struct ioend *io, int error)
{
	wb_hand_out(io->inode->wb, 1);          /* counted like one that went */
	if (io->copy)
		copy_pool_put(&io->inode->cache->copies, io->copy, io->len);
	ended(io, error);
}

void ioend_close(struct ioend *io)
{
	struct iomap_cache *cache = io->inode->cache;
	char *to;

	io->req = (struct iomap_request){
		.op = IOMAP_REQ_WRITE, .pos = io->addr, .iov = io->iov, .iovcnt = (int)io->nr, .done = ioend_done,
	};
	if (io->nr > 1)
		add_relaxed(&io->inode->device->stats.io_merged, io->nr - 1);
	if (io->inode->unstable || io->len > COPY_MAX_BYTES || !(io->copy = copy_pool_get(&cache->copies, io->len)))
		return;
	to = io->copy;
	for (unsigned i = 0; i < io->nr; i++) {
		folio_copy(to, io->iov[i].iov_base, io->iov[i].iov_len);
		to += io->iov[i].iov_len;
		end_stable(&cache->zone, io->piece[i].folio);
	}
	io->iov[0] = (struct iovec){ io->copy, io->len };
	io->req.iovcnt = 1;
}

void ioend_wait_idle(struct inode *inode)
{
	while (load_acquire(&inode->nr_inflight)) {
		uint64_t seen = wb_completions(inode->wb);

		if (load_acquire(&inode->nr_inflight))
			wb_wait_completion(inode->wb, seen, plat_now_ns() + NS_PER_S);
	}
}
