/*
 * fill.c - blocks of folios read from the device
 *
 * Only the part below the device's size is read; what lies beyond is zeroed in memory, so that cached bytes past the end
 * of the file are always zero. The device's size is looked at with the folio in the tree and locked: whoever wrote these blocks
 * before raised the size before the blocks left the cache.
 *
 * A device that returns less than its size promised is broken: -EIO, never zeros.
 *
 * Invariants: a block's uptodate bit is set after its bytes are there; a completion touches nothing of a folio after its
 *             unlock and put; blocks that are uptodate (so all dirty ones) are never read into.
 * Kernel:     iomap_read_folio(), iomap_readahead(), mpage. Differs: requests of new folios cover them whole.
 */
#include <errno.h>
#include <string.h>
#include "fill.h"
#include "mutant.h"

#define FILL_PIECES 64

struct fill_request {
	struct iomap_request req;
	struct mapping *mapping;
	struct fill_request *next;
	struct io_wait *wait;
	uint64_t len;                   /* of the request */
	uint64_t valid;                 /* bytes of it that lie below the device's size */
	unsigned nr;
	struct iomap_folio *folio[FILL_PIECES];
	struct iovec iov[FILL_PIECES];
};

void fill_init(struct fill *fl, struct mapping *m, struct iomap_device *dev, struct io_wait *wait)
{
	*fl = (struct fill){ .mapping = m, .device = dev, .wait = wait };
}

/* What a device's answer means for @len bytes that lie @at bytes into a request. */
static int piece_error(int64_t result, uint64_t at, uint64_t len, uint64_t valid)
{
	uint64_t need = valid > at ? min_u64(len, valid - at) : 0;

	if (result < 0)
		return (int)result;
	return (uint64_t)result < at + need ? -EIO : 0;
}

static void fill_done(struct iomap_request *req)
{
	struct fill_request *r = container_of(req, struct fill_request, req);
	struct mapping *m = r->mapping;
	struct zone *z = m->zone;
	struct wb *wb = m->wb;
	uint64_t at = 0;
	int error = 0;

	for (unsigned i = 0; i < r->nr; i++) {
		struct iomap_folio *f = r->folio[i];
		uint64_t len = r->iov[i].iov_len, bytes = folio_bytes(f);
		int bad = piece_error(req->result, at, len, r->valid);

		if (!bad) {
			uint64_t good = r->valid > at ? min_u64(len, r->valid - at) : 0;

			if (!MUTANT(M_GARBAGE_BEYOND_END))
				folio_zero((char *)r->iov[i].iov_base + good, bytes - good);
			if (!MUTANT(M_TOUCH_AFTER_PUT))
				mapping_set_uptodate(m, f, 0, ifs_blocks(f, &m->geom));
		} else if (!error && req->result < 0) {
			error = bad;    /* short is none yet: the reader reads its own blocks and sees */
		}
		at += len;
		folio_unlock_by_io(z, f);
		folio_put(z, f);
		if (MUTANT(M_TOUCH_AFTER_PUT) && !bad)
			mapping_set_uptodate(m, f, 0, ifs_blocks(f, &m->geom));
	}
	if (r->wait)
		io_wait_done(r->wait, error);
	mem_free(&z->mem, r, sizeof(*r));       /* the mapping may be gone from here on; zone and wb are the cache's */
	wb_completed(wb);
}

static void close_open(struct fill *fl)
{
	struct fill_request *r = fl->open;

	if (!r)
		return;
	r->req.iovcnt = (int)r->nr;
	if (fl->last)
		fl->last->next = r;
	else
		fl->first = r;
	fl->last = r;
	fl->open = NULL;
}

int fill_add(struct fill *fl, struct iomap_folio *f)
{
	struct mapping *m = fl->mapping;
	uint64_t pos = folio_pos(f), size = device_size(fl->device), bytes = folio_bytes(f), len, max;
	struct fill_request *r = fl->open;

	if (pos >= size) {
		folio_zero(folio_addr(m->zone, f), bytes);
		mapping_set_uptodate(m, f, 0, ifs_blocks(f, &m->geom));
		folio_unlock(m->zone, f);
		folio_put(m->zone, f);
		return 0;
	}
	len = min_u64(bytes, round_up(size - pos, ifs_block_bytes(&m->geom)));
	max = fl->device->info.max_bytes ? fl->device->info.max_bytes : UINT64_MAX;
	if (r && (r->nr == FILL_PIECES || r->req.pos + r->len != pos || r->len + len > max))
		close_open(fl);
	r = fl->open;
	if (!r) {
		r = mem_alloc(&m->zone->mem, sizeof(*r));
		if (!r) {
			folio_unlock(m->zone, f);
			folio_put(m->zone, f);
			return -ENOMEM;
		}
		r->mapping = m;
		r->wait = fl->wait;
		r->req = (struct iomap_request){ .op = IOMAP_REQ_READ, .pos = pos, .iov = r->iov, .done = fill_done };
		if (fl->wait)
			io_wait_add(fl->wait);
		fl->open = r;
	}
	r->folio[r->nr] = f;
	r->iov[r->nr++] = (struct iovec){ folio_addr(m->zone, f), len };
	r->len += len;
	r->valid = min_u64(r->len, size - r->req.pos);
	fl->bytes += len;
	lockdep_forget(f);      /* the request's from here on */
	return 0;
}

void fill_submit(struct fill *fl)
{
	struct wb *wb = fl->mapping->wb;
	struct fill_request *next;

	close_open(fl);
	for (struct fill_request *r = fl->first; r; r = next) {
		struct iomap_request *batch[16];
		unsigned n = 0;

		for (next = r; next && n < ARRAY_SIZE(batch); next = next->next)
			batch[n++] = &next->req;
		wb_submit(wb, fl->device, batch, n);
	}
	fl->first = fl->last = NULL;
}

/* One run of missing blocks, one request. */
static int read_run(struct mapping *m, struct iomap_device *dev, struct iomap_folio *f, unsigned first, unsigned nr)
{
	uint64_t bs = ifs_block_bytes(&m->geom), pos = folio_pos(f) + first * bs, len = nr * bs, size = device_size(dev), good = 0;
	char *addr = folio_addr(m->zone, f) + first * bs;

	if (pos < size) {
		uint64_t ask = min_u64(len, round_up(size - pos, bs));
		int64_t result = wb_io(m->wb, dev, IOMAP_REQ_READ, pos, addr, ask);
		int error = piece_error(result, 0, ask, size - pos);

		if (error)
			return error;
		good = min_u64(len, size - pos);
	}
	folio_zero(addr + good, len - good);
	mapping_set_uptodate(m, f, first, nr);
	return 0;
}

int fill_blocks(struct mapping *m, struct iomap_device *dev, struct iomap_folio *f, unsigned first, unsigned nr)
{
	unsigned end = first + nr, at = first, run, run_nr;
	int ret = 0;

	lockdep_assert_held(f);
	while (ifs_next_missing(f, &m->geom, at, end, &run, &run_nr)) {
		int error;

		if (MUTANT(M_READ_OVER_DIRTY))
			run_nr = end - run;
		error = read_run(m, dev, f, run, run_nr);
		for (unsigned b = run; error && run_nr > 1 && b < run + run_nr; b++) {
			int one = read_run(m, dev, f, b, 1);

			if (one && !ret)
				ret = one;
		}
		if (error && run_nr == 1 && !ret)
			ret = error;
		at = run + run_nr;
	}
	return ret;
}
