/*
 * host.c - a program that knows nothing of libiomap, and loads it while it runs
 *
 * usage: host LIBRARY DIRECTORY [arena]
 *
 * As database servers and interpreters do with their plugins: dlopen(), then I/O through the functions found by name, from
 * several threads, then dlclose(). It is not linked with jemalloc; with "arena" it must find jemalloc in the process, and that
 * the first cache makes an arena of its own there; without, that there is none.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <iomap/iomap.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SIZE (1 << 20)

static typeof(iomap_version) *version;
static typeof(iomap_cache_create) *cache_create;
static typeof(iomap_cache_destroy) *cache_destroy;
static typeof(iomap_open) *open_file;
static typeof(iomap_close) *close_file;
static typeof(iomap_pread) *read_file;
static typeof(iomap_pwrite) *write_file;
static typeof(iomap_fsync) *sync_file;
static int (*jemalloc_ctl)(const char *name, void *old, size_t *old_len, void *new, size_t new_len);

static struct iomap_cache *cache;

static void check(int ok, const char *what)
{
	if (ok)
		return;
	fprintf(stderr, "host: %s\n", what);
	exit(1);
}

static void must(long ret, const char *what)
{
	if (ret >= 0)
		return;
	fprintf(stderr, "host: %s: %s\n", what, strerror((int)-ret));
	exit(1);
}

static void *find(void *library, const char *name)
{
	void *f = dlsym(library, name);

	check(f != NULL, name);
	return f;
}

static unsigned arenas(void)
{
	unsigned nr = 0;
	size_t len = sizeof(nr);

	check(!jemalloc_ctl("arenas.narenas", &nr, &len, NULL, 0), "arenas.narenas");
	return nr;
}

/* Threads of the program that the library has not seen, with per-thread state of its own that ends with them. */
static void *worker(void *name)
{
	char *out = malloc(SIZE), *in = malloc(SIZE);
	struct iomap_file *file;

	check(out && in, "no memory");
	for (unsigned i = 0; i < SIZE; i++)
		out[i] = (char)(i * 31 + i / 4096);
	must(open_file(cache, name, O_RDWR | O_CREAT, 0644, &file), "open");
	check(write_file(file, out, SIZE - 13, 13) == SIZE - 13, "write");
	must(sync_file(file), "fsync");
	check(read_file(file, in, SIZE, 0) == SIZE, "read");
	for (unsigned i = 0; i < 13; i++)
		check(in[i] == 0, "the gap is not zero");
	check(!memcmp(in + 13, out, SIZE - 13), "read other than written");
	must(close_file(file), "close");

	/* and as other programs see it */
	FILE *f = fopen(name, "r");

	check(f && fread(in, 1, SIZE, f) == SIZE && !memcmp(in + 13, out, SIZE - 13), "the file's contents");
	fclose(f);
	free(out);
	free(in);
	return NULL;
}

static void use(const char *path, const char *dir, int new_arena)
{
	void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	pthread_t threads[4];
	char names[4][4096];

	if (!library)
		fprintf(stderr, "host: %s\n", dlerror());
	check(library != NULL, "dlopen");
	version = find(library, "iomap_version");
	cache_create = find(library, "iomap_cache_create");
	cache_destroy = find(library, "iomap_cache_destroy");
	open_file = find(library, "iomap_open");
	close_file = find(library, "iomap_close");
	read_file = find(library, "iomap_pread");
	write_file = find(library, "iomap_pwrite");
	sync_file = find(library, "iomap_fsync");
	check(version() == IOMAP_VERSION_NUM, "another version");

	unsigned before = new_arena ? arenas() : 0;

	must(cache_create(&cache, NULL), "cache");
	if (new_arena)
		check(arenas() == before + 1, "the cache has no arena of its own");
	for (int i = 0; i < 4; i++) {
		snprintf(names[i], sizeof(names[i]), "%s/file%d", dir, i);
		check(!pthread_create(&threads[i], NULL, worker, names[i]), "thread");
	}
	for (int i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
	must(cache_destroy(cache), "destroy");
	check(!dlclose(library), "dlclose");
}

int main(int argc, char **argv)
{
	int want_arena = argc == 4 && !strcmp(argv[3], "arena");

	if (argc < 3) {
		fprintf(stderr, "usage: host LIBRARY DIRECTORY [arena]\n");
		return 2;
	}
	jemalloc_ctl = dlsym(RTLD_DEFAULT, "mallctl");
	check(!jemalloc_ctl == !want_arena, want_arena ? "no jemalloc in this program" : "jemalloc is in this program");
	use(argv[1], argv[2], want_arena);
	use(argv[1], argv[2], 0);       /* loaded again after it was closed; the first cache's arena may be used again */
	check(!dlsym(RTLD_DEFAULT, "mallctl") == !want_arena, "the library brought jemalloc with it");
	return 0;
}
