/* A threaded server: runs a script in many requests of many threads, then another in a request of the main thread,
 * which can tell what became of it. With more than one cycle PHP is shut down and started again in this process.
 *
 *   driver [-l] [-d NAME=VALUE]... CYCLES THREADS REQUESTS WORK CHECK
 *
 * WORK and CHECK are PHP files; they find $cycle, $thread and $request, and $threads and $requests. The exit status is
 * 1 when a script failed. -l leaks 42 bytes in every request of WORK, which a debug build of PHP must report. */

#include <pthread.h>
#include <sapi/embed/php_embed.h>
#include <stdatomic.h>

ZEND_TSRMLS_CACHE_DEFINE()

static int cycle, threads, requests;
static const char *work;
static char ini[4096] = "html_errors=0\ndisplay_errors=stderr\nlog_errors=0\nmax_execution_time=0\n";
static bool leak;
static atomic_int failed;

static void serve(const char *script, int thread, int request)
{
	char code[1024];
	snprintf(code, sizeof code,
		"$cycle = %d; $threads = %d; $requests = %d; $thread = %d; $request = %d; require '%s';",
		cycle, threads, requests, thread, request, script);
	if (php_request_startup() == FAILURE) {
		failed++;
		return;
	}
	SG(headers_sent) = 1;
	SG(request_info).no_headers = 1;
	zend_first_try {
		if (leak && script == work) {
			emalloc(42);
		}
		zend_eval_string_ex(code, NULL, script, true);
	} zend_end_try();
	/* exit() sets it, and so does everything that is not caught. */
	if (EG(exit_status) != 0) {
		failed++;
	}
	php_request_shutdown(NULL);
}

static void *run(void *number)
{
	ts_resource(0);
	ZEND_TSRMLS_CACHE_UPDATE();
	for (int request = 0; request < requests; request++) {
		serve(work, (int) (intptr_t) number, request);
	}
	ts_free_thread();
	return NULL;
}

static void run_cycle(const char *check)
{
	php_tsrm_startup();
	zend_signal_startup();
	sapi_startup(&php_embed_module);
	php_embed_module.ini_entries = ini;
	php_embed_module.php_ini_ignore = 1;
	if (php_embed_module.startup(&php_embed_module) == FAILURE) {
		fputs("PHP does not start\n", stderr);
		exit(1);
	}
	ZEND_TSRMLS_CACHE_UPDATE();
	pthread_t running[threads];
	for (int thread = 0; thread < threads; thread++) {
		if (pthread_create(&running[thread], NULL, run, (void *) (intptr_t) thread) != 0) {
			abort();
		}
	}
	for (int thread = 0; thread < threads; thread++) {
		pthread_join(running[thread], NULL);
	}
	serve(check, -1, 0);
	php_module_shutdown();
	sapi_shutdown();
	tsrm_shutdown();
}

int main(int argc, char **argv)
{
	int option;
	while ((option = getopt(argc, argv, "ld:")) != -1) {
		if (option == 'l') {
			leak = true;
		} else if (option == 'd') {
			size_t length = strlen(ini);
			snprintf(ini + length, sizeof ini - length, "%s\n", optarg);
		} else {
			return 2;
		}
	}
	if (argc - optind != 5) {
		fputs("usage: driver [-l] [-d NAME=VALUE]... CYCLES THREADS REQUESTS WORK CHECK\n", stderr);
		return 2;
	}
	argv += optind;
	threads = atoi(argv[1]);
	requests = atoi(argv[2]);
	work = argv[3];
	for (cycle = 0; cycle < atoi(argv[0]); cycle++) {
		run_cycle(argv[4]);
	}
	return failed != 0;
}
