/*
 * hold-device.c - an engine's device over RAM that misbehaves on request
 *
 * One lock. submit() puts requests into a list; a worker carries them out one by one under the lock, by their time or
 * at random, and calls done() without it. The write cache is a journal: what was written since the last flush, in order.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
#include "hold-device.h"
#include "run.h"

enum { MAX_RULES = 64, MAX_ACCEPT = 16, SECTOR = 512 };

struct io {
	struct io *next;
	struct iomap_request *req;
	uint64_t len;
	uint64_t ready_ns;
	uint64_t hash;                  /* of what is to be written, at submission */
	uint64_t journal_seq;           /* a flush covers the journal up to here */
};

struct io_list {
	struct io *head, **tail;
	unsigned nr;
};

struct record {
	struct record *next;
	uint64_t seq;
	uint64_t pos, len;
	uint64_t new_size;              /* valid if sets_size */
	bool sets_size;
	unsigned char data[];
};

struct active_rule {
	struct t_hold_rule rule;
	bool active;
	unsigned matches, acted;
};

struct t_hold {
	struct t_hold_params p;
	struct iomap_device_ops ops;
	pthread_mutex_t lock;
	pthread_cond_t wake;
	pthread_t worker;
	bool has_worker, stop;
	unsigned devices;
	uint64_t random;

	unsigned char *now, *durable;   /* durable only with volatile_cache */
	uint64_t now_size, durable_size;
	uint64_t new_tail;              /* end of an unaligned write inside the size, until set_size() */
	struct record *journal, **journal_tail;
	uint64_t journal_seq;

	struct io_list queue, parked;
	uint64_t busy_until_ns;

	struct active_rule rules[MAX_RULES];
	unsigned nr_rules;
	unsigned accept[MAX_ACCEPT], nr_accept, accept_next;

	int allocate_error;
	uint64_t space;                 /* bytes that may be allocated */
	uint64_t allocated;
	unsigned char *is_allocated;    /* one byte a block */
	unsigned char *is_written;      /* as well: no hole for seek() */

	struct t_hold_count count;
	struct t_hold_entry *log;
	unsigned log_nr, log_max;
	char bad[256];
};

static void list_init(struct io_list *list)
{
	list->head = NULL;
	list->tail = &list->head;
	list->nr = 0;
}

static void list_add(struct io_list *list, struct io *io)
{
	io->next = NULL;
	*list->tail = io;
	list->tail = &io->next;
	list->nr++;
}

static void list_remove(struct io_list *list, struct io *io)
{
	struct io **at = &list->head;

	while (*at != io)
		at = &(*at)->next;
	*at = io->next;
	if (!io->next)
		list->tail = at;
	list->nr--;
}

__attribute__((format(printf, 2, 3)))
static void complain(struct t_hold *hold, const char *format, ...)
{
	va_list ap;

	if (hold->bad[0])
		return;
	va_start(ap, format);
	vsnprintf(hold->bad, sizeof(hold->bad), format, ap);
	va_end(ap);
}

static uint64_t hash_iov(const struct iomap_request *req)
{
	uint64_t hash = 0x243f6a8885a308d3ULL;

	for (int i = 0; i < req->iovcnt; i++) {
		const unsigned char *at = req->iov[i].iov_base;
		size_t left = req->iov[i].iov_len;

		for (; left >= 8; left -= 8, at += 8) {
			uint64_t word;

			memcpy(&word, at, 8);
			hash = (hash ^ word) * 0x9e3779b97f4a7c15ULL;
			hash ^= hash >> 29;
		}
		for (; left; left--, at++)
			hash = (hash ^ *at) * 0x100000001b3ULL;
	}
	return hash;
}

static uint64_t request_len(const struct iomap_request *req)
{
	uint64_t len = 0;

	for (int i = 0; i < req->iovcnt; i++)
		len += req->iov[i].iov_len;
	return len;
}

/* The journal */

static void apply(unsigned char *image, const struct record *rec, uint64_t from, uint64_t to)
{
	memcpy(image + from, rec->data + (from - rec->pos), to - from);
}

/* Sectors are written whole: what follows an unaligned end in its sector goes with it. */
static uint64_t whole_sectors(const struct t_hold *hold, uint64_t pos, uint64_t len)
{
	uint64_t end = (pos + len + SECTOR - 1) / SECTOR * SECTOR;

	return (end < hold->p.capacity ? end : hold->p.capacity) - pos;
}

/* [pos, pos + len) was written, or, with len 0, only the size was set. */
static void journal_add(struct t_hold *hold, uint64_t pos, uint64_t len, bool sets_size, uint64_t new_size)
{
	struct record *rec;

	if (!hold->p.volatile_cache)
		return;
	if (len)
		len = whole_sectors(hold, pos, len);
	rec = malloc(sizeof(*rec) + len);
	if (!rec)
		abort();
	*rec = (struct record) { .seq = ++hold->journal_seq, .pos = pos, .len = len,
				 .sets_size = sets_size, .new_size = new_size };
	memcpy(rec->data, hold->now + pos, len);
	*hold->journal_tail = rec;
	hold->journal_tail = &rec->next;
}

static void set_image_size(unsigned char *image, uint64_t *image_size, uint64_t size)
{
	if (size < *image_size)
		memset(image + size, 0, *image_size - size);
	*image_size = size;
}

/* Makes the journal up to seq durable, or loses its data, where the flush failed; sizes are kept in either case. */
static void journal_flush(struct t_hold *hold, uint64_t seq, bool lose)
{
	while (hold->journal && hold->journal->seq <= seq) {
		struct record *rec = hold->journal;

		if (!lose && rec->len)
			apply(hold->durable, rec, rec->pos, rec->pos + rec->len);
		if (rec->sets_size)
			set_image_size(hold->durable, &hold->durable_size, rec->new_size);
		hold->journal = rec->next;
		free(rec);
	}
	if (!hold->journal)
		hold->journal_tail = &hold->journal;
	if (lose) {
		uint64_t size = hold->now_size > hold->durable_size ? hold->now_size : hold->durable_size;

		memcpy(hold->now, hold->durable, size);
		hold->now_size = hold->durable_size;
		for (struct record *rec = hold->journal; rec; rec = rec->next) {
			apply(hold->now, rec, rec->pos, rec->pos + rec->len);
			if (rec->sets_size)
				set_image_size(hold->now, &hold->now_size, rec->new_size);
		}
	}
}

/* Space */

static uint64_t unallocated(struct t_hold *hold, uint64_t pos, uint64_t len)
{
	uint64_t bytes = 0;

	for (uint64_t b = pos / hold->p.block; b * hold->p.block < pos + len; b++)
		bytes += hold->is_allocated[b] ? 0 : hold->p.block;
	return bytes;
}

static int take_space(struct t_hold *hold, uint64_t pos, uint64_t len)
{
	uint64_t need;

	if (len > hold->p.capacity || pos > hold->p.capacity - len)
		return -EFBIG;
	need = unallocated(hold, pos, len);
	if (need > hold->space || hold->allocated > hold->space - need) {
		if (need)
			return -ENOSPC;
	}
	for (uint64_t b = pos / hold->p.block; b * hold->p.block < pos + len; b++)
		hold->is_allocated[b] = 1;
	hold->allocated += need;
	return 0;
}

static void give_space(struct t_hold *hold, uint64_t pos, uint64_t end)
{
	for (uint64_t b = (pos + hold->p.block - 1) / hold->p.block; (b + 1) * hold->p.block <= end; b++) {
		if (hold->is_allocated[b])
			hold->allocated -= hold->p.block;
		hold->is_allocated[b] = hold->is_written[b] = 0;
	}
}

static void mark_written(struct t_hold *hold, uint64_t pos, uint64_t len)
{
	for (uint64_t b = pos / hold->p.block; b * hold->p.block < pos + len; b++)
		hold->is_written[b] = 1;
}

/* Carrying out */

static int64_t transfer(struct t_hold *hold, struct io *io, uint64_t len)
{
	struct iomap_request *req = io->req;
	uint64_t pos = req->pos, left = len;

	if (req->op == IOMAP_REQ_WRITE) {
		int ret = take_space(hold, pos, len);

		if (ret)
			return ret;
	} else if (pos >= hold->now_size) {
		left = len = 0;
	} else if (len > hold->now_size - pos) {
		left = len = hold->now_size - pos;
	}
	for (int i = 0; i < req->iovcnt; i++) {
		size_t n = req->iov[i].iov_len < left ? req->iov[i].iov_len : left;
		unsigned char *mem = req->iov[i].iov_base;

		if (req->op == IOMAP_REQ_WRITE) {
			memcpy(hold->now + pos, mem, n);
		} else {
			memcpy(mem, hold->now + pos, n);
			memset(mem + n, 0xAA, req->iov[i].iov_len - n);
		}
		pos += n;
		left -= n;
	}
	if (req->op == IOMAP_REQ_WRITE) {
		bool grows = pos > hold->now_size;

		mark_written(hold, req->pos, len);
		journal_add(hold, req->pos, len, grows, pos);
		if (grows)
			hold->now_size = pos;
	}
	return (int64_t)len;
}

static bool rule_matches(const struct t_hold_rule *rule, const struct iomap_request *req, uint64_t len)
{
	if (!(rule->ops & (1U << req->op)))
		return false;
	if (req->op == IOMAP_REQ_FLUSH)
		return true;
	return req->pos + len > rule->pos && (!rule->len || req->pos < rule->pos + rule->len);
}

/* The first rule of one of the kinds that acts on this request now, or NULL; counts. */
static struct t_hold_rule *find_rule(struct t_hold *hold, unsigned kinds, const struct iomap_request *req, uint64_t len)
{
	struct t_hold_rule *found = NULL;

	for (unsigned i = 0; i < hold->nr_rules; i++) {
		struct active_rule *r = &hold->rules[i];

		if (!r->active || !(kinds & (1U << r->rule.action)) || !rule_matches(&r->rule, req, len))
			continue;
		if (++r->matches <= r->rule.skip || found)
			continue;
		if (r->rule.times && r->acted >= r->rule.times)
			continue;
		r->acted++;
		found = &r->rule;
	}
	return found;
}

static void log_entry(struct t_hold *hold, const struct io *io)
{
	struct t_hold_entry *entry;

	if (hold->log_nr >= 1U << 20)
		return;
	if (hold->log_nr == hold->log_max) {
		hold->log_max = hold->log_max ? hold->log_max * 2 : 256;
		hold->log = realloc(hold->log, hold->log_max * sizeof(*hold->log));
		if (!hold->log)
			abort();
	}
	entry = &hold->log[hold->log_nr++];
	*entry = (struct t_hold_entry) { .op = io->req->op, .pos = io->req->pos, .len = io->len,
					 .result = io->req->result };
	if (io->req->iovcnt && io->req->iov[0].iov_len >= 8)
		memcpy(&entry->first_word, io->req->iov[0].iov_base, 8);
}

static void carry_out(struct t_hold *hold, struct io *io)
{
	struct iomap_request *req = io->req;
	struct t_hold_rule *rule = find_rule(hold, 1U << T_HOLD_FAIL | 1U << T_HOLD_SHORT, req, io->len);

	if (req->op == IOMAP_REQ_WRITE && !hold->p.unstable && hash_iov(req) != io->hash)
		complain(hold, "memory of a write at %llu + %llu changed in flight", (unsigned long long)req->pos,
			 (unsigned long long)io->len);
	if (req->op == IOMAP_REQ_FLUSH) {
		bool fails = rule && rule->action == T_HOLD_FAIL;

		if (hold->p.volatile_cache)
			journal_flush(hold, io->journal_seq, fails);
		req->result = fails ? -rule->value : 0;
		hold->count.flushes++;
	} else {
		if (rule && rule->action == T_HOLD_FAIL)
			req->result = -rule->value;
		else if (rule && (uint64_t)rule->value < io->len)
			req->result = transfer(hold, io, (uint64_t)rule->value);
		else
			req->result = transfer(hold, io, io->len);
		if (req->op == IOMAP_REQ_READ)
			hold->count.reads++;
		else
			hold->count.writes++;
		if (req->result > 0 && req->op == IOMAP_REQ_READ)
			hold->count.read_bytes += (uint64_t)req->result;
		else if (req->result > 0)
			hold->count.written_bytes += (uint64_t)req->result;
	}
	if (req->result < 0)
		hold->count.errors++;
	log_entry(hold, io);
	hold->count.inflight--;
}

/* The next request whose time has come, or NULL with *wait_ns how long until one has. */
static struct io *pick(struct t_hold *hold, uint64_t now, uint64_t *until)
{
	struct io *found = NULL;
	uint64_t ready = 0;

	*until = UINT64_MAX;
	for (struct io *io = hold->queue.head; io; io = io->next) {
		if (io->ready_ns > now) {
			if (io->ready_ns < *until)
				*until = io->ready_ns;
			continue;
		}
		if (!hold->p.shuffle)
			return io;
		if (t_random_below(&hold->random, ++ready) == 0)
			found = io;
	}
	return found;
}

static void *work(void *arg)
{
	struct t_hold *hold = arg;

	pthread_mutex_lock(&hold->lock);
	for (;;) {
		uint64_t until;
		struct io *io = pick(hold, t_run_now_ns(), &until);

		if (io) {
			list_remove(&hold->queue, io);
			carry_out(hold, io);
			pthread_mutex_unlock(&hold->lock);
			io->req->done(io->req);
			free(io);
			pthread_mutex_lock(&hold->lock);
		} else if (hold->stop) {
			break;
		} else if (until == UINT64_MAX) {
			pthread_cond_wait(&hold->wake, &hold->lock);
		} else {
			struct timespec ts = { (time_t)(until / 1000000000), (long)(until % 1000000000) };

			pthread_cond_timedwait(&hold->wake, &hold->lock, &ts);
		}
	}
	pthread_mutex_unlock(&hold->lock);
	return NULL;
}

/* The contract */

static bool overlaps(const struct io_list *list, const struct iomap_request *req, uint64_t len, unsigned most_reads)
{
	for (const struct io *io = list->head; io; io = io->next)
		if (io->req->op != IOMAP_REQ_FLUSH &&
		    (io->req->op == IOMAP_REQ_READ) + (req->op == IOMAP_REQ_READ) <= (int)most_reads &&
		    io->req->pos < req->pos + len && req->pos < io->req->pos + io->len)
			return true;
	return false;
}

static bool overlaps_write(const struct t_hold *hold, uint64_t pos, uint64_t len)
{
	const struct iomap_request as_read = { .op = IOMAP_REQ_READ, .pos = pos };

	return overlaps(&hold->queue, &as_read, len, 1) || overlaps(&hold->parked, &as_read, len, 1);
}

static void check_contract(struct t_hold *hold, const struct iomap_request *req, uint64_t len)
{
	unsigned long long pos = req->pos, n = len;
	const char *op = req->op == IOMAP_REQ_READ ? "read" : "write";
	bool odd_end = len % hold->p.block != 0;

	if (req->op != IOMAP_REQ_READ && req->op != IOMAP_REQ_WRITE) {
		complain(hold, "submit() of operation %u", req->op);
		return;
	}
	if (!len || req->iovcnt < 1)
		complain(hold, "empty %s at %llu", op, pos);
	if (req->iovcnt > 1024)
		complain(hold, "%s with %d pieces", op, req->iovcnt);
	if (pos % hold->p.block)
		complain(hold, "%s at %llu + %llu: position is not a multiple of %u", op, pos, n, hold->p.block);
	if (odd_end && (req->op == IOMAP_REQ_READ || hold->p.fixed_size))
		complain(hold, "%s at %llu + %llu: length is not a multiple of %u", op, pos, n, hold->p.block);
	/* a file that is being cut may write its new tail first; then set_size() comes next */
	if (req->op == IOMAP_REQ_WRITE && hold->new_tail && req->pos + len > hold->new_tail)
		complain(hold, "write at %llu + %llu, after one that ended unaligned at %llu of %llu, before set_size()", pos, n,
			 (unsigned long long)hold->new_tail, (unsigned long long)hold->now_size);
	if (odd_end && req->pos + len < hold->now_size)
		hold->new_tail = req->pos + len;
	if (hold->p.max_bytes && len > hold->p.max_bytes)
		complain(hold, "%s of %llu bytes, more than max_bytes", op, n);
	if (req->pos + len > hold->p.capacity)
		complain(hold, "%s at %llu + %llu, past the capacity", op, pos, n);
	if (hold->p.fixed_size && req->pos + len > hold->now_size)
		complain(hold, "%s at %llu + %llu, past the end of a device of fixed size", op, pos, n);
	for (int i = 0; i < req->iovcnt; i++) {
		if ((uintptr_t)req->iov[i].iov_base % hold->p.mem_align)
			complain(hold, "%s at %llu + %llu: memory of piece %d is not aligned", op, pos, n, i);
		if (req->iov[i].iov_len % hold->p.mem_align && !(odd_end && i == req->iovcnt - 1))
			complain(hold, "%s at %llu + %llu: length of piece %d is not aligned", op, pos, n, i);
	}
	unsigned most_reads = hold->p.direct_reads ? 0 : 1;

	if (overlaps(&hold->queue, req, len, most_reads) || overlaps(&hold->parked, req, len, most_reads))
		complain(hold, "%s at %llu + %llu overlaps one in flight", op, pos, n);
}

/* Operations of the device */

static struct io *new_io(struct t_hold *hold, struct iomap_request *req)
{
	struct io *io = calloc(1, sizeof(*io));
	struct t_hold_rule *delay;
	uint64_t now = t_run_now_ns();

	if (!io)
		abort();
	io->req = req;
	io->len = request_len(req);
	io->journal_seq = hold->journal_seq;
	io->ready_ns = now + hold->p.latency_ns;
	if (hold->p.jitter_ns)
		io->ready_ns += t_random_below(&hold->random, hold->p.jitter_ns);
	if (hold->p.bytes_per_second) {
		if (hold->busy_until_ns < now)
			hold->busy_until_ns = now;
		hold->busy_until_ns += io->len * 1000000000 / hold->p.bytes_per_second;
		if (io->ready_ns < hold->busy_until_ns)
			io->ready_ns = hold->busy_until_ns;
	}
	delay = find_rule(hold, 1U << T_HOLD_DELAY, req, io->len);
	if (delay)
		io->ready_ns += (uint64_t)delay->value;
	if (req->op == IOMAP_REQ_WRITE)
		io->hash = hash_iov(req);
	if (++hold->count.inflight > hold->count.inflight_peak)
		hold->count.inflight_peak = hold->count.inflight;
	return io;
}

/* Lock held; it is dropped where the request is completed at once. */
static void start(struct t_hold *hold, struct iomap_request *req)
{
	struct io *io = new_io(hold, req);

	if (find_rule(hold, 1U << T_HOLD_PARK, req, io->len)) {
		list_add(&hold->parked, io);
	} else if (hold->p.inline_done) {
		carry_out(hold, io);
		pthread_mutex_unlock(&hold->lock);
		req->done(req);
		free(io);
		pthread_mutex_lock(&hold->lock);
	} else {
		list_add(&hold->queue, io);
		pthread_cond_signal(&hold->wake);
	}
}

static int hold_submit(struct iomap_device *device, struct iomap_request **reqs, unsigned n)
{
	struct t_hold *hold = iomap_device_priv(device);
	unsigned most = n, taken = 0;
	int ret = 0;

	pthread_mutex_lock(&hold->lock);
	if (hold->accept_next < hold->nr_accept && hold->accept[hold->accept_next++] < most)
		most = hold->accept[hold->accept_next - 1];
	while (taken < most) {
		struct iomap_request *req = reqs[taken];
		uint64_t len = request_len(req);
		struct t_hold_rule *refuse;

		if (hold->p.queue_depth && hold->count.inflight >= hold->p.queue_depth)
			break;
		refuse = find_rule(hold, 1U << T_HOLD_REFUSE, req, len);
		if (refuse) {
			ret = (int)-refuse->value;
			break;
		}
		check_contract(hold, req, len);
		hold->count.submitted++;
		taken++;
		start(hold, req);
	}
	pthread_mutex_unlock(&hold->lock);
	return taken ? (int)taken : ret;
}

static int hold_flush(struct iomap_device *device, struct iomap_request *req)
{
	struct t_hold *hold = iomap_device_priv(device);
	struct t_hold_rule *refuse;

	pthread_mutex_lock(&hold->lock);
	if (req->op != IOMAP_REQ_FLUSH)
		complain(hold, "flush() with operation %u", req->op);
	refuse = find_rule(hold, 1U << T_HOLD_REFUSE, req, 0);
	if (refuse) {
		pthread_mutex_unlock(&hold->lock);
		return (int)-refuse->value;
	}
	start(hold, req);
	pthread_mutex_unlock(&hold->lock);
	return 0;
}

static int hold_set_size(struct iomap_device *device, uint64_t size)
{
	struct t_hold *hold = iomap_device_priv(device);

	if (size > hold->p.capacity)
		return -EFBIG;
	pthread_mutex_lock(&hold->lock);
	hold->count.set_sizes++;
	hold->new_tail = 0;
	if (size < hold->now_size)
		give_space(hold, size, hold->p.capacity);
	set_image_size(hold->now, &hold->now_size, size);
	journal_add(hold, 0, 0, true, size);
	pthread_mutex_unlock(&hold->lock);
	return 0;
}

static int hold_allocate(struct iomap_device *device, uint64_t pos, uint64_t len, int mode)
{
	struct t_hold *hold = iomap_device_priv(device);
	int ret = 0;

	pthread_mutex_lock(&hold->lock);
	hold->count.allocates++;
	if (hold->allocate_error)
		ret = -hold->allocate_error;
	else if (mode == 0 || mode == FALLOC_FL_KEEP_SIZE) {
		ret = take_space(hold, pos, len);
		if (!ret && mode == 0 && pos + len > hold->now_size) {
			hold->now_size = pos + len;
			journal_add(hold, 0, 0, true, hold->now_size);
		}
	} else if (mode == (FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE) ||
		   (mode & ~FALLOC_FL_KEEP_SIZE) == FALLOC_FL_ZERO_RANGE) {
		uint64_t end = pos + len < pos || pos + len > hold->p.capacity ? hold->p.capacity : pos + len;
		uint64_t zero_end = end < hold->now_size ? end : hold->now_size;

		if (overlaps_write(hold, pos, end - pos))
			complain(hold, "allocate(%d) of %llu + %llu while a write of it is in flight", mode, (unsigned long long)pos,
				 (unsigned long long)len);
		if (pos % hold->p.block || (len % hold->p.block && pos + len < hold->now_size))
			complain(hold, "allocate(%d) of %llu + %llu is not aligned", mode, (unsigned long long)pos, (unsigned long long)len);
		if (mode & FALLOC_FL_ZERO_RANGE)
			ret = take_space(hold, pos, len);
		if (ret)
			goto out;
		if (pos < zero_end) {
			memset(hold->now + pos, 0, zero_end - pos);
			journal_add(hold, pos, zero_end - pos, false, 0);
		}
		if (mode & FALLOC_FL_PUNCH_HOLE)
			give_space(hold, pos, end);
		else
			memset(hold->is_written + pos / hold->p.block, 0, (end - pos) / hold->p.block);
		if (mode == FALLOC_FL_ZERO_RANGE && end > hold->now_size) {
			hold->now_size = end;
			journal_add(hold, 0, 0, true, end);
		}
	} else {
		ret = -EOPNOTSUPP;
	}
out:
	pthread_mutex_unlock(&hold->lock);
	return ret;
}

static int hold_seek(struct iomap_device *device, uint64_t pos, int whence, uint64_t *out)
{
	struct t_hold *hold = iomap_device_priv(device);
	int ret = -ENXIO;

	pthread_mutex_lock(&hold->lock);
	if (pos < hold->now_size) {
		uint64_t b = pos / hold->p.block, nr = (hold->now_size + hold->p.block - 1) / hold->p.block;

		while (b < nr && hold->is_written[b] != (whence == SEEK_DATA))
			b++;
		if (b < nr || whence == SEEK_HOLE) {
			*out = b * hold->p.block > pos ? b * hold->p.block : pos;
			if (*out > hold->now_size)
				*out = hold->now_size;
			ret = 0;
		}
	}
	pthread_mutex_unlock(&hold->lock);
	return ret;
}

static void hold_destroy(struct iomap_device *device)
{
	struct t_hold *hold = iomap_device_priv(device);

	pthread_mutex_lock(&hold->lock);
	if (hold->queue.nr || hold->parked.nr)
		complain(hold, "destroy() with requests in flight");
	hold->devices--;
	pthread_mutex_unlock(&hold->lock);
}

/* For the tests */

static unsigned char *map_image(uint64_t bytes)
{
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (p == MAP_FAILED)
		abort();
	return p;
}

struct t_hold *t_hold_create(const struct t_hold_params *params)
{
	struct t_hold *hold = calloc(1, sizeof(*hold));
	pthread_condattr_t attr;

	if (!hold)
		abort();
	if (params)
		hold->p = *params;
	if (!hold->p.capacity)
		hold->p.capacity = 64 << 20;
	if (!hold->p.block)
		hold->p.block = 512;
	if (!hold->p.mem_align)
		hold->p.mem_align = 512;
	hold->random = hold->p.seed;
	hold->now_size = hold->durable_size = hold->p.size;
	hold->now = map_image(hold->p.capacity);
	hold->is_allocated = map_image(hold->p.capacity / hold->p.block + 1);
	hold->is_written = map_image(hold->p.capacity / hold->p.block + 1);
	if (hold->p.volatile_cache)
		hold->durable = map_image(hold->p.capacity);
	hold->journal_tail = &hold->journal;
	hold->space = UINT64_MAX;
	list_init(&hold->queue);
	list_init(&hold->parked);
	hold->ops = (struct iomap_device_ops) {
		.submit = hold_submit, .flush = hold_flush,
		.set_size = hold->p.fixed_size ? NULL : hold_set_size,
		.allocate = hold->p.no_allocate ? NULL : hold_allocate,
		.seek = hold_seek,
		.destroy = hold_destroy,
	};
	pthread_mutex_init(&hold->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&hold->wake, &attr);
	pthread_condattr_destroy(&attr);
	return hold;
}

void t_hold_free(struct t_hold *hold)
{
	if (!hold)
		return;
	if (hold->has_worker) {
		pthread_mutex_lock(&hold->lock);
		hold->stop = true;
		pthread_cond_signal(&hold->wake);
		pthread_mutex_unlock(&hold->lock);
		pthread_join(hold->worker, NULL);
	}
	while (hold->journal) {
		struct record *rec = hold->journal;

		hold->journal = rec->next;
		free(rec);
	}
	while (hold->parked.head) {
		struct io *io = hold->parked.head;

		hold->parked.head = io->next;
		free(io);
	}
	munmap(hold->now, hold->p.capacity);
	munmap(hold->is_allocated, hold->p.capacity / hold->p.block + 1);
	munmap(hold->is_written, hold->p.capacity / hold->p.block + 1);
	if (hold->durable)
		munmap(hold->durable, hold->p.capacity);
	pthread_mutex_destroy(&hold->lock);
	pthread_cond_destroy(&hold->wake);
	free(hold->log);
	free(hold);
}

struct iomap_device *t_hold_device(struct t_hold *hold)
{
	struct iomap_device_info info = {
		.block = hold->p.block, .mem_align = hold->p.mem_align, .max_bytes = hold->p.max_bytes,
		.size = t_hold_size(hold),
	};
	struct iomap_device *device;

	pthread_mutex_lock(&hold->lock);
	hold->devices++;
	if (!hold->has_worker && !hold->p.inline_done) {
		if (pthread_create(&hold->worker, NULL, work, hold) != 0)
			abort();
		hold->has_worker = true;
	}
	pthread_mutex_unlock(&hold->lock);
	if (iomap_device_create(&hold->ops, hold, &info, &device) != 0)
		t_run_fail(__FILE__, __LINE__, "iomap_device_create");
	return device;
}

unsigned t_hold_devices(struct t_hold *hold)
{
	unsigned nr;

	pthread_mutex_lock(&hold->lock);
	nr = hold->devices;
	pthread_mutex_unlock(&hold->lock);
	return nr;
}

unsigned t_hold_rule(struct t_hold *hold, const struct t_hold_rule *rule)
{
	unsigned nr;

	pthread_mutex_lock(&hold->lock);
	if (hold->nr_rules == MAX_RULES) {
		for (nr = 0; nr < MAX_RULES && hold->rules[nr].active; nr++)
			;
		if (nr == MAX_RULES)
			abort();
	} else {
		nr = hold->nr_rules++;
	}
	hold->rules[nr] = (struct active_rule) { .rule = *rule, .active = true };
	pthread_mutex_unlock(&hold->lock);
	return nr;
}

unsigned t_hold_acted(struct t_hold *hold, unsigned rule)
{
	unsigned nr;

	pthread_mutex_lock(&hold->lock);
	nr = hold->rules[rule].acted;
	pthread_mutex_unlock(&hold->lock);
	return nr;
}

void t_hold_heal(struct t_hold *hold)
{
	pthread_mutex_lock(&hold->lock);
	for (unsigned i = 0; i < hold->nr_rules; i++)
		if (hold->rules[i].rule.action != T_HOLD_PARK)
			hold->rules[i].active = false;
	pthread_mutex_unlock(&hold->lock);
}

void t_hold_fail(struct t_hold *hold, unsigned ops, uint64_t pos, uint64_t len, int err)
{
	struct t_hold_rule rule = { .ops = ops, .pos = pos, .len = len, .action = T_HOLD_FAIL, .value = err };

	t_hold_rule(hold, &rule);
}

void t_hold_fail_nth(struct t_hold *hold, unsigned ops, unsigned n, int err)
{
	struct t_hold_rule rule = { .ops = ops, .action = T_HOLD_FAIL, .value = err, .skip = n - 1, .times = 1 };

	t_hold_rule(hold, &rule);
}

void t_hold_park(struct t_hold *hold, unsigned ops, uint64_t pos, uint64_t len)
{
	struct t_hold_rule rule = { .ops = ops, .pos = pos, .len = len, .action = T_HOLD_PARK };

	t_hold_rule(hold, &rule);
}

unsigned t_hold_parked(struct t_hold *hold)
{
	unsigned nr;

	pthread_mutex_lock(&hold->lock);
	nr = hold->parked.nr;
	pthread_mutex_unlock(&hold->lock);
	return nr;
}

bool t_hold_wait_parked(struct t_hold *hold, unsigned n)
{
	return T_WAIT(t_hold_parked(hold) >= n, 10000);
}

static void release(struct t_hold *hold, bool reverse)
{
	struct io *all = NULL;

	pthread_mutex_lock(&hold->lock);
	for (unsigned i = 0; i < hold->nr_rules; i++)
		if (hold->rules[i].rule.action == T_HOLD_PARK)
			hold->rules[i].active = false;
	while (hold->parked.head) {
		struct io *io = hold->parked.head;

		list_remove(&hold->parked, io);
		if (reverse) {
			io->next = all;
			all = io;
		} else {
			list_add(&hold->queue, io);
		}
	}
	while (all) {
		struct io *io = all;

		all = io->next;
		list_add(&hold->queue, io);
	}
	if (hold->p.inline_done && !hold->has_worker) {        /* somebody has to finish them */
		if (pthread_create(&hold->worker, NULL, work, hold) != 0)
			abort();
		hold->has_worker = true;
	}
	pthread_cond_signal(&hold->wake);
	pthread_mutex_unlock(&hold->lock);
}

void t_hold_release(struct t_hold *hold)
{
	release(hold, false);
}

void t_hold_release_reverse(struct t_hold *hold)
{
	release(hold, true);
}

void t_hold_accept(struct t_hold *hold, const unsigned *counts, unsigned nr)
{
	pthread_mutex_lock(&hold->lock);
	if (nr > MAX_ACCEPT)
		abort();
	memcpy(hold->accept, counts, nr * sizeof(*counts));
	hold->nr_accept = nr;
	hold->accept_next = 0;
	pthread_mutex_unlock(&hold->lock);
}

void t_hold_set_space(struct t_hold *hold, uint64_t bytes)
{
	pthread_mutex_lock(&hold->lock);
	hold->space = bytes;
	pthread_mutex_unlock(&hold->lock);
}

void t_hold_fail_allocate(struct t_hold *hold, int err)
{
	pthread_mutex_lock(&hold->lock);
	hold->allocate_error = err;
	pthread_mutex_unlock(&hold->lock);
}

uint64_t t_hold_allocated(struct t_hold *hold)
{
	uint64_t bytes;

	pthread_mutex_lock(&hold->lock);
	bytes = hold->allocated;
	pthread_mutex_unlock(&hold->lock);
	return bytes;
}

void t_hold_counts(struct t_hold *hold, struct t_hold_count *out)
{
	pthread_mutex_lock(&hold->lock);
	*out = hold->count;
	pthread_mutex_unlock(&hold->lock);
}

unsigned t_hold_log(struct t_hold *hold, struct t_hold_entry *out, unsigned max)
{
	unsigned nr;

	pthread_mutex_lock(&hold->lock);
	nr = hold->log_nr;
	if (hold->log_nr)
		memcpy(out, hold->log, (nr < max ? nr : max) * sizeof(*out));
	pthread_mutex_unlock(&hold->lock);
	return nr;
}

void t_hold_log_clear(struct t_hold *hold)
{
	pthread_mutex_lock(&hold->lock);
	hold->log_nr = 0;
	pthread_mutex_unlock(&hold->lock);
}

const char *t_hold_bad(struct t_hold *hold)
{
	const char *bad;

	pthread_mutex_lock(&hold->lock);
	bad = hold->bad[0] ? hold->bad : NULL;
	pthread_mutex_unlock(&hold->lock);
	return bad;
}

uint64_t t_hold_size(struct t_hold *hold)
{
	uint64_t size;

	pthread_mutex_lock(&hold->lock);
	size = hold->now_size;
	pthread_mutex_unlock(&hold->lock);
	return size;
}

static void peek(struct t_hold *hold, bool is_durable, void *buf, uint64_t len, uint64_t pos)
{
	uint64_t n = 0, size;
	unsigned char *from;

	pthread_mutex_lock(&hold->lock);
	from = is_durable && hold->durable ? hold->durable : hold->now;
	size = is_durable && hold->durable ? hold->durable_size : hold->now_size;
	if (pos < size)
		n = len < size - pos ? len : size - pos;
	memcpy(buf, from + pos, n);
	pthread_mutex_unlock(&hold->lock);
	memset((unsigned char *)buf + n, 0, len - n);
}

void t_hold_peek(struct t_hold *hold, void *buf, uint64_t len, uint64_t pos)
{
	peek(hold, false, buf, len, pos);
}

void t_hold_peek_durable(struct t_hold *hold, void *buf, uint64_t len, uint64_t pos)
{
	peek(hold, true, buf, len, pos);
}

uint64_t t_hold_durable_size(struct t_hold *hold)
{
	uint64_t size;

	pthread_mutex_lock(&hold->lock);
	size = hold->durable ? hold->durable_size : hold->now_size;
	pthread_mutex_unlock(&hold->lock);
	return size;
}

void t_hold_poke(struct t_hold *hold, const void *buf, uint64_t len, uint64_t pos)
{
	pthread_mutex_lock(&hold->lock);
	mark_written(hold, pos, len);
	memcpy(hold->now + pos, buf, len);
	if (hold->durable)
		memcpy(hold->durable + pos, buf, len);
	if (pos + len > hold->now_size)
		hold->now_size = hold->durable_size = pos + len;
	pthread_mutex_unlock(&hold->lock);
}

/* Each sector of the record below size is written with chance keep / 4. */
static void apply_some(unsigned char *image, uint64_t size, const struct record *rec, unsigned keep, uint64_t *random)
{
	uint64_t end = rec->pos + rec->len < size ? rec->pos + rec->len : size;

	for (uint64_t pos = rec->pos; pos < end; ) {
		uint64_t next = pos / SECTOR * SECTOR + SECTOR;

		if (next > end)
			next = end;
		if (t_random_below(random, 4) < keep)
			apply(image, rec, pos, next);
		pos = next;
	}
}

static void apply_in_flight(const struct t_hold *hold, const struct io_list *list, unsigned char *image, uint64_t size,
			    unsigned keep, uint64_t *random)
{
	for (const struct io *io = list->head; io; io = io->next) {
		struct record *rec;
		uint64_t len;
		unsigned char *at;

		if (io->req->op != IOMAP_REQ_WRITE)
			continue;
		len = whole_sectors(hold, io->req->pos, io->len);
		rec = malloc(sizeof(*rec) + len);
		if (!rec)
			abort();
		rec->pos = io->req->pos;
		rec->len = len;
		memcpy(rec->data, hold->now + rec->pos, len);
		at = rec->data;
		for (int i = 0; i < io->req->iovcnt; i++) {
			memcpy(at, io->req->iov[i].iov_base, io->req->iov[i].iov_len);
			at += io->req->iov[i].iov_len;
		}
		apply_some(image, size, rec, keep, random);
		free(rec);
	}
}

static struct t_hold *crash(struct t_hold *hold, bool strict, uint64_t seed)
{
	struct t_hold *after;
	unsigned char *from;
	uint64_t random = seed, nr = 0, metadata, i = 0;
	unsigned keep;

	pthread_mutex_lock(&hold->lock);
	after = t_hold_create(&hold->p);
	from = hold->durable ? hold->durable : hold->now;
	after->now_size = hold->durable ? hold->durable_size : hold->now_size;
	memcpy(after->now, from, after->now_size);
	for (struct record *rec = hold->journal; rec; rec = rec->next)
		nr++;
	metadata = strict ? 0 : t_random_below(&random, nr + 1);
	keep = strict ? 0 : (unsigned)t_random_below(&random, 5);
	for (struct record *rec = hold->journal; rec && !strict; rec = rec->next, i++) {
		if (rec->sets_size && i < metadata) {
			apply(after->now, rec, rec->pos, rec->pos + rec->len);
			set_image_size(after->now, &after->now_size, rec->new_size);
		} else {
			apply_some(after->now, after->now_size, rec, keep, &random);
		}
	}
	if (!strict) {
		apply_in_flight(hold, &hold->queue, after->now, after->now_size, keep, &random);
		apply_in_flight(hold, &hold->parked, after->now, after->now_size, keep, &random);
	}
	pthread_mutex_unlock(&hold->lock);
	after->durable_size = after->now_size;
	mark_written(after, 0, after->now_size);        /* as far as anybody knows */
	if (after->durable)
		memcpy(after->durable, after->now, after->now_size);
	return after;
}

struct t_hold *t_hold_crash(struct t_hold *hold, uint64_t seed)
{
	return crash(hold, false, seed);
}

struct t_hold *t_hold_crash_strict(struct t_hold *hold)
{
	return crash(hold, true, 0);
}
