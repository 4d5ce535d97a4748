/*
 * main.c - iomap-bench: one program, one sub-command for each workload
 */
#include "bench.h"
#include "report.h"

#include <signal.h>
#include <string.h>

#include <iomap/iomap.h>

static const struct workload *const workloads[] = {
	&overcharge_workload,
	&readers_workload,
	&hot_workload,
};

static void usage(FILE *out)
{
	fputs("usage: iomap-bench WORKLOAD [options]\n\n"
	      "Measures libiomap beside a baseline in the same run and answers one question for each workload:\n\n", out);
	for (size_t i = 0; i < ARRAY_LEN(workloads); i++)
		fprintf(out, "  %-12s %s\n", workloads[i]->name, workloads[i]->question);
	fputs("\niomap-bench WORKLOAD --help lists the options of one.\n", out);
}

int main(int argc, char **argv)
{
	/* a gnuplot that dies early is a sentence in the report, not the end of the program */
	signal(SIGPIPE, SIG_IGN);

	if (argc < 2) {
		usage(stderr);
		return 2;
	}
	if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h") || !strcmp(argv[1], "help")) {
		usage(stdout);
		return 0;
	}
	if (!strcmp(argv[1], "--version")) {
		unsigned version = iomap_version();

		printf("iomap-bench of libiomap %u.%u.%u, commit %s\n", version / 10000, version / 100 % 100,
		       version % 100, report_commit());
		return 0;
	}
	for (size_t i = 0; i < ARRAY_LEN(workloads); i++)
		if (!strcmp(argv[1], workloads[i]->name))
			return workloads[i]->run(argc - 1, argv + 1);
	complain("there is no workload \"%s\"; iomap-bench --help lists them", argv[1]);
	return 2;
}
