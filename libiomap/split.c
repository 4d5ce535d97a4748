/*
 * split.c - one request as several, for a device that takes less than a block at a time
 *
 * A block is the unit of everything above, so a request of at least one block may be larger than what such a device takes. It
 * is cut here, its parts may end in any order, and it ends with the last of them: with the first error in file order, else
 * with the bytes up to the first short part.
 *
 * Locking: an atomic count of parts under way.
 * Kernel:  bio_split() and bio chains.
 */
#include <errno.h>
#include "split.h"
#include "util.h"

struct part { struct iomap_request req; struct split *split; };

struct split {
	struct mem *mem;
	size_t bytes;                   /* of this allocation */
	struct iomap_request *whole;
	_Atomic unsigned pending;
	unsigned nr;
	struct part *parts;
	struct iomap_request **reqs;
	struct iovec *iov;
};

static int64_t result_of(const struct split *s)
{
	int64_t sum = 0;

	for (unsigned i = 0; i < s->nr; i++)
		if (s->parts[i].req.result < 0)
			return s->parts[i].req.result;
	for (unsigned i = 0; i < s->nr; i++) {
		sum += s->parts[i].req.result;
		if ((uint64_t)s->parts[i].req.result < request_bytes(&s->parts[i].req))
			break;
	}
	return sum;
}

static void part_done(struct iomap_request *req)
{
	struct split *s = container_of(req, struct part, req)->split;
	struct iomap_request *whole = s->whole;

	if (sub_acq_rel(&s->pending, 1) != 1)
		return;
	whole->result = result_of(s);
	mem_free(s->mem, s, s->bytes);
	whole->done(whole);
}

struct split *split_create(struct mem *mem, struct iomap_request *req, uint64_t step)
{
	uint64_t len = request_bytes(req);
	unsigned nr = (unsigned)div_round_up(len, step), nr_iov = nr + (unsigned)req->iovcnt, used = 0;
	size_t bytes = sizeof(struct split) + nr * (sizeof(struct part) + sizeof(struct iomap_request *)) +
		       nr_iov * sizeof(struct iovec);
	struct split *s = mem_alloc(mem, bytes);
	const struct iovec *from = req->iov;
	uint64_t off = 0;

	if (!s)
		return NULL;
	s->mem = mem;
	s->bytes = bytes;
	s->whole = req;
	s->nr = nr;
	s->parts = (struct part *)(s + 1);
	s->reqs = (struct iomap_request **)(s->parts + nr);
	s->iov = (struct iovec *)(s->reqs + nr);
	atomic_init(&s->pending, nr);
	for (unsigned i = 0; i < nr; i++) {
		struct part *p = &s->parts[i];
		uint64_t want = min_u64(step, len - i * step);

		p->split = s;
		p->req = (struct iomap_request){ .op = req->op, .pos = req->pos + i * step, .iov = &s->iov[used], .done = part_done };
		while (want) {
			uint64_t n = min_u64(want, from->iov_len - off);

			s->iov[used++] = (struct iovec){ (char *)from->iov_base + off, n };
			p->req.iovcnt++;
			want -= n;
			off += n;
			if (off == from->iov_len) {
				from++;
				off = 0;
			}
		}
		s->reqs[i] = &p->req;
	}
	return s;
}

struct iomap_request **split_parts(struct split *s, unsigned *nr)
{
	*nr = s->nr;
	return s->reqs;
}
