/*
 * fill.c - blocks of folios read from the device
 *
 * Only the part below the stored end (the device's, or where an engine maps, the file's) is read; what lies beyond is zeroed in
 * memory, so that cached bytes past the end of the file are always zero. The end is looked at with the folio in the tree and locked:
 * whoever wrote these blocks before raised it before the blocks left the cache. For the same reason an engine is asked where
 * blocks are when the folio is in the tree: what was written there before has been converted by then.
 *
 * Each mapped part of a folio is a piece of a request that goes on while file and device do. Parts that are nowhere are zeroed at once. The
 * folio stays locked until its last piece has ended; with more than one they count themselves in a struct fill_share.
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

/* A folio that several pieces bring in: from the second piece to the last one's end. */
struct fill_share { _Atomic unsigned pieces; };

struct fill_piece { struct iomap_folio *folio; unsigned first, nr; struct fill_share *share; };

struct fill_request {
	struct iomap_request req;
	struct inode *inode;
	struct fill_request *next;
	struct io_wait *wait;
	uint64_t pos;                   /* in the file; req.pos is on the device */
	uint64_t len;                   /* of the request */
	uint64_t valid;                 /* bytes of it that lie below the stored end */
	unsigned nr;
	struct fill_piece piece[FILL_PIECES];
	struct iovec iov[FILL_PIECES];
};

void fill_init(struct fill *fl, struct inode *inode, struct io_wait *wait)
{
	*fl = (struct fill){ .inode = inode, .wait = wait };
}

/* What a device's answer means for @len bytes that lie @at bytes into a request. */
static int piece_error(int64_t result, uint64_t at, uint64_t len, uint64_t valid)
{
	uint64_t need = valid > at ? min_u64(len, valid - at) : 0;

	if (result < 0)
		return (int)result;
	return (uint64_t)result < at + need ? -EIO : 0;
}

/* Who ended the folio's last piece lets it go. */
static void end_piece(struct mapping *m, struct fill_piece *piece)
{
	struct iomap_folio *f = piece->folio;
	struct zone *z = m->zone;

	if (piece->share) {
		if (sub_acq_rel(&piece->share->pieces, 1) != 1)
			return;
		mem_free(&z->mem, piece->share, sizeof(*piece->share));
	}
	folio_unlock_by_io(z, f);
	folio_put(z, f);
}

static void fill_done(struct iomap_request *req)
{
	struct fill_request *r = container_of(req, struct fill_request, req);
	struct mapping *m = &r->inode->mapping;
	struct zone *z = m->zone;
	struct wb *wb = m->wb;
	uint64_t at = 0;
	int error = 0;

	for (unsigned i = 0; i < r->nr; i++) {
		struct fill_piece *piece = &r->piece[i];
		struct iomap_folio *f = piece->folio;
		uint64_t len = r->iov[i].iov_len;
		int bad = piece_error(req->result, at, len, r->valid);

		if (!bad) {
			uint64_t good = r->valid > at ? min_u64(len, r->valid - at) : 0;

			if (!MUTANT(M_GARBAGE_BEYOND_END))
				folio_zero((char *)r->iov[i].iov_base + good, len - good);
			if (!MUTANT(M_TOUCH_AFTER_PUT))
				mapping_set_uptodate(m, f, piece->first, piece->nr);
		} else if (!error && req->result < 0) {
			error = bad;    /* short is none yet: the reader reads its own blocks and sees */
		}
		at += len;
		end_piece(m, piece);
		if (MUTANT(M_TOUCH_AFTER_PUT) && !bad)
			mapping_set_uptodate(m, f, piece->first, piece->nr);
	}
	if (r->wait)
		io_wait_done(r->wait, error);
	mem_free(&z->mem, r, sizeof(*r));       /* the inode may be gone from here on; zone and wb are the cache's */
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

/* One more piece, in the request that is open or in a new one. NULL: no memory. */
static struct fill_piece *add_piece(struct fill *fl, struct iomap_folio *f, unsigned first, unsigned nr, uint64_t addr)
{
	struct inode *inode = fl->inode;
	struct mapping *m = &inode->mapping;
	uint64_t bs = ifs_block_bytes(&m->geom), pos = folio_pos(f) + first * bs, len = nr * bs, end = inode_stored_end(inode);
	uint64_t max = inode->device->info.max_bytes ? inode->device->info.max_bytes : UINT64_MAX;
	struct fill_request *r = fl->open;

	if (r && (r->nr == FILL_PIECES || r->pos + r->len != pos || r->req.pos + r->len != addr || r->len + len > max))
		close_open(fl);
	r = fl->open;
	if (!r) {
		r = mem_alloc(&m->zone->mem, sizeof(*r));
		if (!r)
			return NULL;
		r->inode = inode;
		r->wait = fl->wait;
		r->pos = pos;
		r->req = (struct iomap_request){ .op = IOMAP_REQ_READ, .pos = addr, .iov = r->iov, .done = fill_done };
		if (fl->wait)
			io_wait_add(fl->wait);
		fl->open = r;
	}
	r->piece[r->nr] = (struct fill_piece){ .folio = f, .first = first, .nr = nr };
	r->iov[r->nr] = (struct iovec){ folio_addr(m->zone, f) + first * bs, len };
	r->len += len;
	r->valid = end > r->pos ? min_u64(r->len, end - r->pos) : 0;
	fl->bytes += len;
	return &r->piece[r->nr++];
}

/* Blocks [first, first + nr) of which nothing is on the device: zeros, or what an engine keeps with its metadata. */
static void fill_without_io(struct inode *inode, struct iomap_folio *f, unsigned first, unsigned nr, const struct iomap *map)
{
	struct mapping *m = &inode->mapping;
	uint64_t bs = ifs_block_bytes(&m->geom), pos = folio_pos(f) + first * bs, len = nr * bs, n = 0;
	char *addr = folio_addr(m->zone, f) + first * bs;

	if (map && map->type == IOMAP_INLINE) {
		uint64_t end = min_u64(map->offset + map->length, inode_size(inode));

		n = end > pos ? min_u64(len, end - pos) : 0;
		folio_copy(addr, (const char *)map->inline_data + (pos - map->offset), n);
	}
	folio_zero(addr + n, len - n);
}

/* Of the mapping in hand, blocks of @f: how many from it->pos on. */
static unsigned blocks_of(const struct iter *it, const struct ifs_geometry *g)
{
	return (unsigned)div_round_up(iter_length(it), ifs_block_bytes(g));
}

/* Goes on behind @nr blocks; inline data ends inside one. */
static void advance_blocks(struct iter *it, const struct ifs_geometry *g, unsigned nr)
{
	uint64_t n = nr * ifs_block_bytes(g), here = iter_length(it);

	iter_advance(it, min_u64(n, here));
	if (n > here) {
		it->pos += n - here;
		it->left -= n - here;
	}
}

static bool is_stored(const struct iomap *map) { return map->type == IOMAP_MAPPED && !(map->flags & IOMAP_F_NEW); }

int fill_add(struct fill *fl, struct iomap_folio *f)
{
	struct inode *inode = fl->inode;
	struct mapping *m = &inode->mapping;
	uint64_t bs = ifs_block_bytes(&m->geom), pos = folio_pos(f), bytes = folio_bytes(f), end = inode_stored_end(inode), len;
	struct fill_piece *first = NULL;
	struct fill_share *share = NULL;
	struct iter it;
	int ret = 0;

	len = end > pos ? min_u64(bytes, round_up(end - pos, bs)) : 0;
	if (len < bytes) {
		folio_zero(folio_addr(m->zone, f) + len, bytes - len);
		mapping_set_uptodate(m, f, (unsigned)(len / bs), (unsigned)((bytes - len) / bs));
	}
	iter_init(&it, inode, pos, len, folio_flags(f) & FOLIO_DROPBEHIND ? IOMAP_DONTCACHE : 0);
	while ((ret = iter_next(&it)) > 0) {
		unsigned blk = (unsigned)((it.pos - pos) / bs), nr = blocks_of(&it, &m->geom);
		struct fill_piece *piece;

		if (!is_stored(&it.map)) {
			fill_without_io(inode, f, blk, nr, &it.map);
			mapping_set_uptodate(m, f, blk, nr);
			advance_blocks(&it, &m->geom, nr);
			continue;
		}
		if (first && !share) {
			share = mem_alloc(&m->zone->mem, sizeof(*share));
			if (!share) {
				it.status = -ENOMEM;
				continue;
			}
			store_relaxed(&share->pieces, 1);
			first->share = share;
		}
		piece = add_piece(fl, f, blk, nr, it.map.addr + (it.pos - it.map.offset));
		if (!piece) {
			it.status = -ENOMEM;
			continue;
		}
		piece->share = share;
		if (share)
			add_relaxed(&share->pieces, 1);         /* none of them is submitted yet */
		if (!first)
			first = piece;
		advance_blocks(&it, &m->geom, nr);
	}
	if (first) {
		lockdep_forget(f);      /* the request's from here on */
	} else {
		folio_unlock(m->zone, f);
		folio_put(m->zone, f);
	}
	return ret;
}

void fill_submit(struct fill *fl)
{
	struct wb *wb = fl->inode->wb;
	struct fill_request *next;

	close_open(fl);
	for (struct fill_request *r = fl->first; r; r = next) {
		struct iomap_request *batch[16];
		unsigned n = 0;

		for (next = r; next && n < ARRAY_SIZE(batch); next = next->next)
			batch[n++] = &next->req;
		wb_submit(wb, fl->inode->device, batch, n);
	}
	fl->first = fl->last = NULL;
}

/* Bytes [pos, pos + len) of a locked folio, stored at @addr. */
static int read_stored(struct inode *inode, uint64_t pos, char *to, uint64_t len, uint64_t addr)
{
	uint64_t bs = ifs_block_bytes(&inode->mapping.geom), end = inode_stored_end(inode), good = 0;

	if (pos < end) {
		uint64_t ask = min_u64(len, round_up(end - pos, bs));
		int64_t result = wb_io(inode->wb, inode->device, IOMAP_REQ_READ, addr, to, ask);
		int error = piece_error(result, 0, ask, end - pos);

		if (error)
			return error;
		good = min_u64(len, end - pos);
	}
	folio_zero(to + good, len - good);
	return 0;
}

int fill_block_from(struct inode *inode, struct iomap_folio *f, unsigned blk, const struct iomap *map)
{
	uint64_t bs = ifs_block_bytes(&inode->mapping.geom), pos = folio_pos(f) + blk * bs;

	if (map->type == IOMAP_MAPPED)
		return read_stored(inode, pos, folio_addr(inode->mapping.zone, f) + blk * bs, bs, map->addr + (pos - map->offset));
	fill_without_io(inode, f, blk, 1, map);
	return 0;
}

/* One run of missing blocks, one request for each mapping. */
static int read_run(struct inode *inode, struct iomap_folio *f, unsigned first, unsigned run)
{
	struct mapping *m = &inode->mapping;
	uint64_t bs = ifs_block_bytes(&m->geom), pos = folio_pos(f);
	struct iter it;
	int ret;

	iter_init(&it, inode, pos + first * bs, run * bs, folio_flags(f) & FOLIO_DROPBEHIND ? IOMAP_DONTCACHE : 0);
	while ((ret = iter_next(&it)) > 0) {
		unsigned blk = (unsigned)((it.pos - pos) / bs), nr = blocks_of(&it, &m->geom);

		if (!is_stored(&it.map))
			fill_without_io(inode, f, blk, nr, &it.map);
		else
			it.status = read_stored(inode, it.pos, folio_addr(m->zone, f) + blk * bs, nr * bs,
						it.map.addr + (it.pos - it.map.offset));
		if (it.status)
			continue;
		mapping_set_uptodate(m, f, blk, nr);
		advance_blocks(&it, &m->geom, nr);
	}
	return ret;
}

int fill_blocks(struct inode *inode, struct iomap_folio *f, unsigned first, unsigned nr)
{
	struct mapping *m = &inode->mapping;
	unsigned end = first + nr, at = first, run, run_nr;
	int ret = 0;

	lockdep_assert_held(f);
	while (ifs_next_missing(f, &m->geom, at, end, &run, &run_nr)) {
		int error;

		if (MUTANT(M_READ_OVER_DIRTY))
			run_nr = end - run;
		error = read_run(inode, f, run, run_nr);
		for (unsigned b = run; error && run_nr > 1 && b < run + run_nr; b++) {
			int one = ifs_range_uptodate(f, &m->geom, b, 1) ? 0 : read_run(inode, f, b, 1);

			if (one && !ret)
				ret = one;
		}
		if (error && run_nr == 1 && !ret)
			ret = error;
		at = run + run_nr;
	}
	return ret;
}
