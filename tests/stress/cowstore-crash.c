/*
 * cowstore-crash.c - cut the power of examples/cowstore 100,000 times
 *
 * One run works on a store on a crash-device for some dozen commits: writes, truncations, removals, snapshots, in a cache so
 * small that much is written before the commit asks for it, and read back now and then. Then moments are drawn from the device's log,
 * and for each several images of what a power cut there would have left. Each image is opened by the same code and must be
 * clean, and must be exactly one commit: the last that had returned, or the one under way; with every snapshot, every object,
 * every byte as they were then. Some images are worked on further: what comes after a crash must be right, too. The next run
 * mostly starts from one of them.
 *
 * Before that, the test tests itself: with each of the bugs that the store knows how to have it must fail.
 *
 * --ops N: so many power cuts. COWSTORE_BUG=n: plants bug n (enum cow_bug) for all of it.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include "cowstore.h"
#include "crash-device.h"
#include "run.h"

enum {
	BYTES_MIN = 80 * 4096,          /* the store: small, so that blocks are reused soon, often so small that it is full */
	BYTES = 256 * 4096,
	NAMES = 6,
	SNAPS = 4,
	SIZE_MAX_ = 1200000,            /* of an object: a little more than a tree of one level holds; most are far smaller */
	COMMITS = 30,                   /* of one run */
	MOMENTS = 100,                  /* looked at in one run */
	WORKERS = 2,                    /* processes: most of the time is spent waiting for threads to start and end */
};

/* --- what must be there ----------------------------------------------------------------------------------- */

/* Contents of one object; never changed once a state has it. */
struct body {
	unsigned refs;
	uint64_t size;
	unsigned char bytes[];
};

/* All objects, and all snapshots (which are states without snapshots). */
struct state {
	unsigned refs;
	struct body *object[NAMES];
	struct state *snapshot[SNAPS];
};

static void *must(void *p)
{
	if (!p)
		abort();
	return p;
}

static struct body *body_get(struct body *b)
{
	if (b)
		b->refs++;
	return b;
}

static void body_put(struct body *b)
{
	if (b && !--b->refs)
		free(b);
}

/* A copy that may be changed, of size @size; @from may be NULL. */
static struct body *body_copy(const struct body *from, uint64_t size)
{
	struct body *b = must(calloc(1, sizeof(*b) + size));

	b->refs = 1;
	b->size = size;
	if (from)
		memcpy(b->bytes, from->bytes, from->size < size ? from->size : size);
	return b;
}

static struct state *state_get(struct state *s)
{
	if (s)
		s->refs++;
	return s;
}

static void state_put(struct state *s)
{
	if (!s || --s->refs)
		return;
	for (unsigned i = 0; i < NAMES; i++)
		body_put(s->object[i]);
	for (unsigned i = 0; i < SNAPS; i++)
		state_put(s->snapshot[i]);
	free(s);
}

static struct state *state_copy(const struct state *from, bool snapshots)
{
	struct state *s = must(calloc(1, sizeof(*s)));

	s->refs = 1;
	for (unsigned i = 0; from && i < NAMES; i++)
		s->object[i] = body_get(from->object[i]);
	for (unsigned i = 0; from && snapshots && i < SNAPS; i++)
		s->snapshot[i] = state_get(from->snapshot[i]);
	return s;
}

/* --- saying what is wrong --------------------------------------------------------------------------------- */

static char why[1024];
static bool quiet;

__attribute__((format(printf, 1, 2)))
static bool wrong(const char *format, ...)
{
	va_list ap;

	if (!why[0]) {
		va_start(ap, format);
		vsnprintf(why, sizeof(why), format, ap);
		va_end(ap);
	}
	return false;
}

static void tell(void *priv, const char *message)
{
	(void)priv;
	wrong("the store says: %s", message);
}

static const char *name_of(const char *what, unsigned i)
{
	static char names[2][32];
	char *name = names[*what == 's'];

	snprintf(name, sizeof(names[0]), "%s %u", what, i);
	return name;
}

/* --- a store against a state ------------------------------------------------------------------------------ */

static bool object_is(struct cow_store *store, unsigned i, const char *snapshot, const struct body *want)
{
	static unsigned char buf[SIZE_MAX_ + 1];
	const char *name = name_of("object", i), *at = snapshot ? snapshot : "today";
	struct cow_object *o;
	ssize_t got = 0;
	uint64_t n = 0;
	int ret = cow_object_open(store, name, snapshot, false, &o);

	if (ret == -ENOENT && !want)
		return true;
	if (ret || !want) {
		if (!ret)
			cow_object_close(o);
		return wrong("%s (%s): open says %d, it should%s be there", name, at, ret, want ? "" : " not");
	}
	while (n < sizeof(buf) && (got = cow_read(o, buf + n, sizeof(buf) - n, n)) > 0)
		n += (uint64_t)got;
	cow_object_close(o);
	if (got < 0 || n != want->size)
		return wrong("%s (%s): %llu bytes of %llu, read says %zd", name, at, (unsigned long long)n,
			     (unsigned long long)want->size, got);
	for (uint64_t k = 0; memcmp(buf, want->bytes, n) != 0 && k < n; k++)
		if (buf[k] != want->bytes[k])
			return wrong("%s (%s): byte %llu of %llu is %#x, should be %#x", name, at, (unsigned long long)k,
				     (unsigned long long)n, buf[k], want->bytes[k]);
	return true;
}

static bool objects_are(struct cow_store *store, const char *snapshot, const struct state *want)
{
	for (unsigned i = 0; i < NAMES; i++)
		if (!object_is(store, i, snapshot, want->object[i]))
			return false;
	return true;
}

static bool store_is(struct cow_store *store, const struct state *want)
{
	struct cow_info *info;
	ssize_t n = cow_list(store, NULL, true, &info);
	int problems;

	if (n < 0)
		return wrong("the list of snapshots: %zd", n);
	free(info);
	for (unsigned i = 0; i < SNAPS; i++) {
		const char *name = name_of("snapshot", i);

		n -= want->snapshot[i] != NULL;
		if (want->snapshot[i] && !objects_are(store, name, want->snapshot[i]))
			return false;
	}
	if (n)
		return wrong("%zd snapshots too many", n);
	if (!objects_are(store, NULL, want))
		return false;
	problems = cow_verify(store);
	return problems == 0 || wrong("verify: %d", problems);
}

/* --- work ------------------------------------------------------------------------------------------------- */

/* A store that is worked on, and what it should hold. */
struct work {
	struct cow_store *store;
	struct state *now;
	uint64_t random;
	uint16_t seed;                  /* of the next bytes written */
};

static uint64_t commits, full;          /* made; changes refused for lack of space */

static bool expected(const char *what, int ret)
{
	full += ret == -ENOSPC;
	return ret == 0 || ret == -ENOSPC || wrong("%s: %s", what, strerror(-ret));
}

/* Position and length are mostly small and odd; now and then far out, so that the tree gets higher. */
static bool do_write(struct work *w, unsigned i)
{
	static unsigned char buf[65536];
	struct body *old = w->now->object[i];
	uint64_t pos = t_random_below(&w->random, 40000), len = 1 + t_random_below(&w->random, 20000);
	struct cow_object *o;
	ssize_t n;
	int ret;

	switch (t_random_below(&w->random, 30)) {
	case 0: pos += 1040000; break;
	case 1: pos = old ? old->size : 0; break;
	case 2: pos = 0, len = old ? old->size : len; break;
	case 3: pos &= ~4095ULL, len = 4096 * (1 + len / 4096); break;
	case 4: len = 1 + len % 100; break;
	case 5: case 6: len *= 3; break;
	case 7: case 8: case 9: pos += 2000 * (pos % 20); break;
	}
	if (len > sizeof(buf))
		len = sizeof(buf);
	if (pos + len > SIZE_MAX_)
		pos = SIZE_MAX_ - len;
	if (!len)
		return true;
	t_fill(buf, pos, len, w->seed++);
	ret = cow_object_open(w->store, name_of("object", i), NULL, true, &o);
	if (ret)
		return expected("create", ret);
	n = cow_write(o, buf, len, pos);
	cow_object_close(o);
	if (n < 0 && !expected("write", (int)n))
		return false;
	struct body *b = body_copy(old, n > 0 && (!old || old->size < pos + (uint64_t)n) ? pos + (uint64_t)n : old ? old->size : 0);

	if (n > 0)
		memcpy(b->bytes + pos, buf, (size_t)n);
	body_put(old);
	w->now->object[i] = b;
	return true;
}

static bool do_truncate(struct work *w, unsigned i)
{
	struct body *old = w->now->object[i];
	uint64_t size = t_random_below(&w->random, 3) ? t_random_below(&w->random, 50000) : old ? old->size / 4 : 0;
	struct cow_object *o;
	int ret;

	if (!old)
		return true;
	ret = cow_object_open(w->store, name_of("object", i), NULL, false, &o);
	if (ret)
		return wrong("open: %d", ret);
	ret = cow_truncate(o, size);
	cow_object_close(o);
	if (ret)
		return expected("truncate", ret);
	w->now->object[i] = body_copy(old, size);
	body_put(old);
	return true;
}

static bool do_remove(struct work *w, unsigned i)
{
	int ret = cow_remove(w->store, name_of("object", i));

	if (ret == -ENOENT && !w->now->object[i])
		return true;
	if (ret)
		return expected("remove", ret);
	body_put(w->now->object[i]);
	w->now->object[i] = NULL;
	return true;
}

/* Takes a snapshot that the next commit makes, or removes it. It is of what is there at that commit. */
static bool do_snapshot(struct work *w, unsigned i, bool *taken)
{
	int ret;

	if (w->now->snapshot[i]) {
		ret = cow_snapshot_remove(w->store, name_of("snapshot", i));
		if (ret)
			return expected("remove snapshot", ret);
		state_put(w->now->snapshot[i]);
		w->now->snapshot[i] = NULL;
		return true;
	}
	ret = cow_snapshot(w->store, name_of("snapshot", i));
	if (ret == -EEXIST && *taken)
		return true;
	if (ret)
		return expected("snapshot", ret);
	*taken = true;
	return true;
}

/* Some changes and a commit. *@state gets what must be there now. */
static bool one_commit(struct work *w)
{
	unsigned changes = 1 + (unsigned)t_random_below(&w->random, 4), snapshot = (unsigned)t_random_below(&w->random, SNAPS);
	bool good = true, taken = false;
	int ret;

	for (unsigned k = 0; k < changes && good; k++) {
		unsigned i = (unsigned)t_random_below(&w->random, NAMES);

		switch (t_random_below(&w->random, 12)) {
		case 0: good = do_remove(w, i); break;
		case 1: case 2: good = do_truncate(w, i); break;
		case 3: case 4: good = do_snapshot(w, snapshot, &taken); break;
		default: good = do_write(w, i); break;
		}
	}
	/* what is not committed is read like everything else, from the cache or from where writeback has put it */
	if (good && !t_random_below(&w->random, 3))
		good = objects_are(w->store, NULL, w->now);
	if (!good)
		return false;
	ret = cow_commit(w->store);
	if (ret)
		return wrong("commit: %s", strerror(-ret));
	commits++;
	if (taken)
		w->now->snapshot[snapshot] = state_copy(w->now, false);
	return true;
}

/* --- one run ---------------------------------------------------------------------------------------------- */

/* One commit of a run: what it made, and when. */
struct point {
	uint64_t generation;
	uint64_t began, returned;       /* moments */
	struct state *state;
};

struct run {
	uint64_t random;
	uint64_t bytes;                 /* of this store, BYTES_MIN … BYTES */
	unsigned char start[BYTES], image[BYTES];
	struct state *start_state;
	struct point point[COMMITS + 1];
	unsigned nr;
	uint64_t cuts;
};

static bool open_store(struct t_crash *crash, bool log, bool readonly, bool format, enum cow_bug bug, struct iomap_device **device,
		       struct cow_store **store)
{
	struct cow_params params = { .cache_bytes = 1 << 20, .readonly = readonly, .format = format, .bug = bug, .tell = tell };
	int ret;

	*device = t_crash_device(crash, log);
	ret = cow_open(*device, &params, store);
	if (!ret)
		return true;
	iomap_device_close(*device);
	return wrong("the store cannot be opened: %s", strerror(-ret));
}

static void close_store(struct iomap_device *device, struct cow_store *store)
{
	cow_close(store);
	iomap_device_close(device);
}

static uint64_t generation_of(struct cow_store *store)
{
	struct cow_stat st;

	return cow_stat(store, &st) == 0 ? st.generation : UINT64_MAX;
}

/* Works for COMMITS commits on what is in run->start. */
static bool work(struct run *run, struct t_crash *crash, enum cow_bug bug)
{
	struct work w = { .random = run->random, .seed = (uint16_t)run->random };
	struct iomap_device *device;
	bool good = true;

	if (!open_store(crash, true, false, false, bug, &device, &w.store))
		return false;
	w.now = state_copy(run->start_state, true);
	run->point[0] = (struct point) { generation_of(w.store), 0, 0, state_copy(w.now, true) };
	for (run->nr = 1; run->nr <= COMMITS && good; run->nr++) {
		struct point *p = &run->point[run->nr];

		p->began = t_crash_moments(crash);
		good = one_commit(&w);
		if (!good)
			break;
		p->returned = t_crash_moments(crash);
		p->state = state_copy(w.now, true);
		p->generation = generation_of(w.store);
	}
	close_store(device, w.store);
	state_put(w.now);
	if (t_crash_complaint(crash))
		good = wrong("the device: %s", t_crash_complaint(crash));
	return good;
}

/* Opens run->image, a cut at @moment, and compares. *@state gets which commit it is. */
static bool check_image(struct run *run, uint64_t moment, bool go_on, struct state **state)
{
	struct t_crash *crash = t_crash_create(run->bytes, run->image);
	struct iomap_device *device;
	struct work w = { .random = run->random, .seed = (uint16_t)(run->random >> 16) };
	bool good = open_store(crash, false, !go_on, false, COW_BUG_NONE, &device, &w.store);

	if (good) {
		uint64_t generation = generation_of(w.store), least = 0, most = 0;
		struct point *found = NULL;

		for (struct point *p = run->point; p < run->point + run->nr; p++) {
			least = p->returned <= moment ? p->generation : least;
			most = p->began <= moment ? p->generation : most;
			found = p->generation == generation ? p : found;
		}
		if (!found || generation < least || generation > most)
			good = wrong("commit %llu is there, not %llu to %llu", (unsigned long long)generation,
				     (unsigned long long)least, (unsigned long long)most);
		else
			good = store_is(w.store, found->state);
		if (good)
			*state = found->state;
		if (good && go_on) {
			w.now = state_copy(found->state, true);
			good = one_commit(&w) && store_is(w.store, w.now);
			state_put(w.now);
		}
		close_store(device, w.store);
	}
	t_crash_free(crash);
	return good;
}

/* A failure is told with all that it takes to look at it: the image is kept. */
static void report(struct run *run, uint64_t seed, uint64_t moment, unsigned how)
{
	char path[] = "/tmp/cowstore-crash.XXXXXX";
	int fd;

	if (quiet)
		return;
	fd = mkstemp(path);
	if (fd >= 0 && write(fd, run->image, run->bytes) != (ssize_t)run->bytes)
		path[0] = '\0';
	if (fd >= 0)
		close(fd);
	printf("seed %llu, moment %llu, image %u (%s): %s\n", (unsigned long long)seed, (unsigned long long)moment, how, path, why);
	fflush(stdout);
}

/* Work, then as many cuts as are wanted, at most; false at the first that is wrong. */
static bool run_once(struct run *run, uint64_t seed, uint64_t max_cuts, enum cow_bug bug)
{
	struct t_crash *crash = t_crash_create(run->bytes, run->start);
	struct state *state = NULL, *keep = NULL;
	struct t_crash_replay *replay;
	uint64_t moments, end;
	bool good;

	why[0] = '\0';
	run->random = seed;
	good = work(run, crash, bug);
	if (!good)
		report(run, seed, 0, 99);
	moments = t_crash_moments(crash);
	replay = t_crash_replay(crash);
	end = run->cuts + max_cuts;
	/* moments in ascending order: each with the same chance to be among MOMENTS of them */
	for (uint64_t m = 0, left = MOMENTS; good && m <= moments && run->cuts < end; m++) {
		if (t_random_below(&run->random, moments + 1 - m) >= left)
			continue;
		left--;
		t_crash_replay_to(replay, m);
		for (unsigned how = 0; how < T_CRASH_HOWS && good; how++) {
			if (how != T_CRASH_NEWEST && !t_crash_replay_pending(replay))
				continue;       /* they are all the same */
			t_crash_image(replay, how, &run->random, run->image);
			good = check_image(run, m, t_random_below(&run->random, 8) == 0, &state);
			run->cuts++;
			if (!good)
				report(run, seed, m, how);
			else if (!keep || !t_random_below(&run->random, 50)) {
				/* the next run may begin here */
				state_put(keep);
				keep = state_get(state);
				memcpy(run->start, run->image, run->bytes);
			}
		}
	}
	t_crash_replay_free(replay);
	t_crash_free(crash);
	for (unsigned i = 0; i < run->nr; i++) {
		state_put(run->point[i].state);
		run->point[i].state = NULL;
	}
	if (keep) {
		state_put(run->start_state);
		run->start_state = keep;
	}
	return good;
}

/* An empty store in run->start. */
static bool begin_anew(struct run *run, uint64_t seed)
{
	uint64_t bytes = BYTES_MIN + t_random_below(&seed, (BYTES - BYTES_MIN) / 4096 + 1) * 4096;
	struct t_crash *crash = t_crash_create(bytes, NULL);
	struct iomap_device *device;
	struct cow_store *store;
	bool good = open_store(crash, false, false, true, COW_BUG_NONE, &device, &store);

	if (good) {
		close_store(device, store);
		run->bytes = bytes;
		memcpy(run->start, t_crash_bytes(crash), bytes);
		state_put(run->start_state);
		run->start_state = state_copy(NULL, false);
	}
	t_crash_free(crash);
	return good;
}

/* Up to @cuts of them; false at the first that is wrong. */
static bool cut_power(struct run *run, uint64_t seed, uint64_t cuts, enum cow_bug bug)
{
	bool good = true;

	run->cuts = 0;
	for (unsigned n = 0; good && run->cuts < cuts; n++) {
		if (n % 4 == 0 && !begin_anew(run, seed + n)) {
			printf("%s\n", why);
			return false;
		}
		good = run_once(run, seed + n, cuts - run->cuts, bug);
	}
	return good;
}

/* What one of the processes that share the work has done; in memory they share. */
struct tally {
	uint64_t passed, failed, commits, full;
};

/* As many cuts as the process is to make, without a bug. */
static void work_off(struct run *run, uint64_t seed, uint64_t cuts, struct tally *tally)
{
	while (cuts && tally->failed < 3) {
		bool good = cut_power(run, seed, cuts, COW_BUG_NONE);

		tally->passed += run->cuts - !good;
		tally->failed += !good;
		cuts -= run->cuts < cuts ? run->cuts : cuts;
		seed += 1000;
	}
	tally->commits = commits;
	tally->full = full;
}

/* Does the test notice @bug? */
static void try_bug(struct run *run, uint64_t seed, enum cow_bug bug, struct tally *tally)
{
	static const char *const bugs[] = { "", "no flush before the root", "root not durable at return", "live blocks overwritten" };
	bool found;

	quiet = true;
	found = !cut_power(run, seed, 5000, bug);
	printf("planted bug \"%s\": %s after %llu power cuts%s%s\n", bugs[bug], found ? "noticed" : "NOT NOTICED",
	       (unsigned long long)run->cuts, found ? ": " : "", found ? why : "");
	tally->passed = found;
	tally->failed = !found;
}

int main(int argc, char **argv)
{
	enum { BUGS = COW_BUG_IN_PLACE, PROCESSES = BUGS + WORKERS };
	struct t_options options = { .ops = 2000, .long_ops = 100000 };
	struct run *run = must(calloc(1, sizeof(*run)));
	const char *planted = getenv("COWSTORE_BUG");
	struct tally *tally = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	uint64_t passed = 0, failed = 0;
	int status;

	if (tally == MAP_FAILED)
		return 2;
	t_parse_options(&options, argc, argv);
	if (t_run_slow() > 1 && !options.long_run && options.ops == 2000)
		options.ops = 300;
	if (planted) {
		if (!cut_power(run, options.seed, options.ops, (enum cow_bug)atoi(planted)))
			return 1;
		printf("%llu cuts, none noticed the planted bug\n", (unsigned long long)run->cuts);
		return 0;
	}
	/* all work in processes of their own, forked while there is one thread */
	fflush(NULL);
	for (unsigned i = 0; i < PROCESSES; i++) {
		uint64_t cuts = options.ops / WORKERS + (i - BUGS < options.ops % WORKERS);
		pid_t pid = fork();

		if (pid < 0)
			return 2;
		if (pid)
			continue;
		if (i < BUGS)
			try_bug(run, options.seed, (enum cow_bug)(i + 1), &tally[i]);
		else
			work_off(run, options.seed + i * 1000003ULL, cuts, &tally[i]);
		state_put(run->start_state);
		free(run);
		exit(0);
	}
	for (unsigned i = 0; i < PROCESSES; i++)
		if (wait(&status) < 0 || status)
			failed++;               /* it died of something */
	for (unsigned i = 0; i < PROCESSES; i++) {
		passed += tally[i].passed;
		failed += tally[i].failed;
		if (i >= BUGS)
			printf("process %u: %llu commits, %llu changes refused for lack of space\n", i - BUGS,
			       (unsigned long long)tally[i].commits, (unsigned long long)tally[i].full);
	}
	free(run);
	printf("%llu passed, %llu failed\n", (unsigned long long)passed, (unsigned long long)failed);
	return failed != 0;
}
