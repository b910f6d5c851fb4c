/* An OpenCL layer between the loader and the drivers: it counts calls, and makes chosen calls of one function go wrong.

   Functions stand in the dispatch table in the order of cl_khr_icd. No OpenCL header is needed: handles are pointers,
   cl_int is int32_t, cl_uint uint32_t, cl_bool uint32_t, bit fields and properties are 64 bits wide. */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef void *H;
typedef int32_t I;
typedef uint32_t U;
typedef uint64_t B;
typedef size_t Z;
typedef const size_t *ZP;
typedef const H *W;

enum { FAIL = 1, LATE, DELAY, HANG, DROP, CORRUPT, EVENT };
enum { MEMORY, EVENTS, KERNELS, PROGRAMS, QUEUES, CONTEXTS, KINDS };
enum { MOST = 256 };

static void *const *target;
static void *table[MOST];
static int64_t calls[MOST], live[KINDS];
static int fault_function = -1, fault_action, fault_code, fault_hits;
static int64_t fault_first, fault_last;
static int armed = 1;

static const char *name_of(int function);

/* In child processes: add a line to the file that an environment variable names. */
static void note(const char *variable, int function)
{
    const char *path = getenv(variable);
    FILE *file = path ? fopen(path, "a") : NULL;
    if (!file)
        return;
    fprintf(file, "%d %s\n", (int) getpid(), name_of(function));
    fclose(file);
}

/* What becomes of this call: 0, or an action. */
static int begin(int function)
{
    if (!armed)
        return 0;
    note("CLROPE_TEST_FAULT_CALLS", function);
    int64_t number = __atomic_add_fetch(&calls[function], 1, __ATOMIC_SEQ_CST);
    if (function != fault_function || number < fault_first || number > fault_last)
        return 0;
    __atomic_add_fetch(&fault_hits, 1, __ATOMIC_SEQ_CST);
    note("CLROPE_TEST_FAULT_HIT", function);
    if (fault_action == DELAY)
        usleep(20000);
    while (fault_action == HANG)
        sleep(3600);
    return fault_action;
}

static void count(int kind, int change)
{
    __atomic_add_fetch(&live[kind], change, __ATOMIC_SEQ_CST);
}

#define CALL(number, result, parameters) ((result (*) parameters) target[number])

/* A function that returns an error code. */
#define CODE(number, name, parameters, arguments)                                                                      \
    static I my_##name parameters                                                                                      \
    {                                                                                                                  \
        int action = begin(number);                                                                                    \
        if (action == FAIL)                                                                                            \
            return fault_code;                                                                                         \
        if (action == DROP)                                                                                            \
            return 0;                                                                                                  \
        I code = CALL(number, I, parameters) arguments;                                                                \
        return action == LATE ? fault_code : code;                                                                     \
    }

/* A function that changes how many objects of a kind there are; what is not released is a leak. */
#define COUNTED(number, name, kind, change)                                                                            \
    static I my_##name(H object)                                                                                       \
    {                                                                                                                  \
        int action = begin(number);                                                                                    \
        if (action == FAIL)                                                                                            \
            return fault_code;                                                                                         \
        I code = CALL(number, I, (H))(object);                                                                         \
        if (!code)                                                                                                     \
            count(kind, change);                                                                                       \
        return code;                                                                                                   \
    }

/* A function that returns a new object, and its error code through the last parameter. */
#define OBJECT(number, name, kind, parameters, arguments)                                                              \
    static H my_##name parameters                                                                                      \
    {                                                                                                                  \
        int action = begin(number);                                                                                    \
        if (action == FAIL) {                                                                                          \
            if (error)                                                                                                 \
                *error = fault_code;                                                                                   \
            return NULL;                                                                                               \
        }                                                                                                              \
        H made = CALL(number, H, parameters) arguments;                                                                \
        if (made && kind < KINDS)                                                                                      \
            count(kind, 1);                                                                                            \
        return made;                                                                                                   \
    }

static void failed_event(H queue, H *event);

/* The command is not done; with EVENT its event fails. */
static I dropped(H queue, U waits, W list, H *event, int action)
{
    I code = CALL(105, I, (H, U, W, H *))(queue, waits, list, event); /* clEnqueueMarkerWithWaitList */
    if (!code && event)
        count(EVENTS, 1);
    if (!code && event && action == EVENT)
        failed_event(queue, event);
    return code;
}

/* Whether a command must fail because one of those that it waits for has. PoCL 3.0 never ends the command instead. */
static int waits_for_a_failed_one(U waits, W list)
{
    for (U i = 0; i < waits; i++) {
        I status = 0;
        CALL(42, I, (H, U, Z, H, Z *))(list[i], 0x11D3, sizeof status, &status, NULL); /* its execution status */
        if (status < 0)
            return 1;
    }
    return 0;
}

/* A function that puts a command on a queue. */
#define ENQUEUE(number, name, parameters, arguments)                                                                   \
    static I my_##name parameters                                                                                      \
    {                                                                                                                  \
        int action = begin(number);                                                                                    \
        if (action == FAIL)                                                                                            \
            return fault_code;                                                                                         \
        if (waits_for_a_failed_one(waits, list))                                                                       \
            return dropped(queue, 0, NULL, event, EVENT);                                                              \
        if (action == DROP || action == EVENT)                                                                         \
            return dropped(queue, waits, list, event, action);                                                         \
        I code = CALL(number, I, parameters) arguments;                                                                \
        if (!code && event)                                                                                            \
            count(EVENTS, 1);                                                                                          \
        return code;                                                                                                   \
    }

#define LIST U waits, W list, H *event

/* With CLROPE_TEST_GPU devices say that they are GPUs with memory of their own, without shared virtual memory. */
static I my_clGetDeviceInfo(H device, U name, Z size, void *value, Z *real)
{
    I code = CALL(3, I, (H, U, Z, void *, Z *))(device, name, size, value, real);
    if (!code && value && getenv("CLROPE_TEST_GPU")) {
        if (name == 0x1000) /* CL_DEVICE_TYPE */
            *(B *)value = 4;
        if (name == 0x1035) /* CL_DEVICE_HOST_UNIFIED_MEMORY */
            *(U *)value = 0;
        if (name == 0x1053) /* CL_DEVICE_SVM_CAPABILITIES */
            *(B *)value = 0;
    }
    return code;
}

OBJECT(4, clCreateContext, CONTEXTS, (const intptr_t *properties, U n, W devices, H notify, H data, I *error),
       (properties, n, devices, notify, data, error))
COUNTED(6, clRetainContext, CONTEXTS, 1)
COUNTED(7, clReleaseContext, CONTEXTS, -1)
OBJECT(9, clCreateCommandQueue, QUEUES, (H context, H device, B properties, I *error),
       (context, device, properties, error))
COUNTED(10, clRetainCommandQueue, QUEUES, 1)
COUNTED(11, clReleaseCommandQueue, QUEUES, -1)
OBJECT(14, clCreateBuffer, MEMORY, (H context, B flags, Z size, H host, I *error), (context, flags, size, host, error))
COUNTED(17, clRetainMemObject, MEMORY, 1)
COUNTED(18, clReleaseMemObject, MEMORY, -1)
OBJECT(26, clCreateProgramWithSource, PROGRAMS, (H context, U n, const char **texts, ZP lengths, I *error),
       (context, n, texts, lengths, error))
OBJECT(27, clCreateProgramWithBinary, PROGRAMS,
       (H context, U n, W devices, ZP lengths, const unsigned char **binaries, I *status, I *error),
       (context, n, devices, lengths, binaries, status, error))
COUNTED(28, clRetainProgram, PROGRAMS, 1)
COUNTED(29, clReleaseProgram, PROGRAMS, -1)
CODE(30, clBuildProgram, (H program, U n, W devices, const char *options, H notify, H data),
     (program, n, devices, options, notify, data))
CODE(32, clGetProgramInfo, (H program, U name, Z size, H value, Z *real), (program, name, size, value, real))
CODE(33, clGetProgramBuildInfo, (H program, H device, U name, Z size, H value, Z *real),
     (program, device, name, size, value, real))
OBJECT(34, clCreateKernel, KERNELS, (H program, const char *name, I *error), (program, name, error))

static I my_clCreateKernelsInProgram(H program, U n, H *kernels, U *real)
{
    U made = 0;
    if (begin(35) == FAIL)
        return fault_code;
    I code = CALL(35, I, (H, U, H *, U *))(program, n, kernels, &made);
    if (!code && kernels)
        count(KERNELS, (int)(n < made ? n : made));
    if (real)
        *real = made;
    return code;
}

COUNTED(36, clRetainKernel, KERNELS, 1)
COUNTED(37, clReleaseKernel, KERNELS, -1)
CODE(38, clSetKernelArg, (H kernel, U index, Z size, const void *value), (kernel, index, size, value))
CODE(39, clGetKernelInfo, (H kernel, U name, Z size, H value, Z *real), (kernel, name, size, value, real))
CODE(40, clGetKernelWorkGroupInfo, (H kernel, H device, U name, Z size, H value, Z *real),
     (kernel, device, name, size, value, real))
CODE(41, clWaitForEvents, (U n, W events), (n, events))
CODE(42, clGetEventInfo, (H event, U name, Z size, H value, Z *real), (event, name, size, value, real))
COUNTED(43, clRetainEvent, EVENTS, 1)
COUNTED(44, clReleaseEvent, EVENTS, -1)
CODE(46, clFlush, (H queue), (queue))
CODE(47, clFinish, (H queue), (queue))

static I my_clEnqueueReadBuffer(H queue, H buffer, U blocking, Z offset, Z size, void *host, LIST)
{
    int action = begin(48);
    if (action == FAIL)
        return fault_code;
    int failed = waits_for_a_failed_one(waits, list);
    if ((action == EVENT || failed) && blocking)
        return -14; /* CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST */
    if (failed)
        return dropped(queue, 0, NULL, event, EVENT);
    if (action == DROP || action == EVENT)
        return dropped(queue, waits, list, event, action);
    if (action == CORRUPT)
        blocking = 1;
    I code = CALL(48, I, (H, H, U, Z, Z, void *, LIST))(queue, buffer, blocking, offset, size, host, waits, list, event);
    if (!code && event)
        count(EVENTS, 1);
    if (!code && action == CORRUPT && size)
        ((unsigned char *)host)[size / 2] ^= 0x40;
    return code;
}

ENQUEUE(49, clEnqueueWriteBuffer, (H queue, H buffer, U blocking, Z offset, Z size, const void *host, LIST),
        (queue, buffer, blocking, offset, size, host, waits, list, event))
ENQUEUE(50, clEnqueueCopyBuffer, (H queue, H from, H to, Z from_offset, Z to_offset, Z size, LIST),
        (queue, from, to, from_offset, to_offset, size, waits, list, event))

static H my_clEnqueueMapBuffer(H queue, H buffer, U blocking, B flags, Z offset, Z size, LIST, I *error)
{
    int action = begin(56);
    if (action == FAIL) {
        if (error)
            *error = fault_code;
        return NULL;
    }
    H mapped = CALL(56, H, (H, H, U, B, Z, Z, LIST, I *))(queue, buffer, blocking, flags, offset, size, waits, list,
                                                          event, error);
    if (mapped && event)
        count(EVENTS, 1);
    return mapped;
}

ENQUEUE(58, clEnqueueUnmapMemObject, (H queue, H memory, H mapped, LIST), (queue, memory, mapped, waits, list, event))
ENQUEUE(59, clEnqueueNDRangeKernel, (H queue, H kernel, U dimensions, ZP offset, ZP global, ZP local, LIST),
        (queue, kernel, dimensions, offset, global, local, waits, list, event))
OBJECT(82, clCreateSubBuffer, MEMORY, (H buffer, B flags, U type, const void *region, I *error),
       (buffer, flags, type, region, error))
OBJECT(84, clCreateUserEvent, EVENTS, (H context, I *error), (context, error))
CODE(85, clSetUserEventStatus, (H event, I status), (event, status))
ENQUEUE(102, clEnqueueFillBuffer, (H queue, H buffer, const void *pattern, Z length, Z offset, Z size, LIST),
        (queue, buffer, pattern, length, offset, size, waits, list, event))
ENQUEUE(104, clEnqueueMigrateMemObjects, (H queue, U n, W memory, B flags, LIST),
        (queue, n, memory, flags, waits, list, event))
ENQUEUE(105, clEnqueueMarkerWithWaitList, (H queue, LIST), (queue, waits, list, event))
ENQUEUE(106, clEnqueueBarrierWithWaitList, (H queue, LIST), (queue, waits, list, event))
OBJECT(123, clCreateCommandQueueWithProperties, QUEUES, (H context, H device, const B *properties, I *error),
       (context, device, properties, error))

static H my_clSVMAlloc(H context, B flags, Z size, U alignment)
{
    return begin(126) == FAIL ? NULL : CALL(126, H, (H, B, Z, U))(context, flags, size, alignment);
}

ENQUEUE(129, clEnqueueSVMMemcpy, (H queue, U blocking, void *to, const void *from, Z size, LIST),
        (queue, blocking, to, from, size, waits, list, event))
CODE(134, clSetKernelArgSVMPointer, (H kernel, U index, const void *value), (kernel, index, value))

/* Replace an event by one that has failed. */
static void failed_event(H queue, H *event)
{
    H context = NULL;
    I code = 0;
    CALL(47, I, (H))(queue);
    CALL(12, I, (H, U, Z, H, Z *))(queue, 0x1090, sizeof context, &context, NULL); /* CL_QUEUE_CONTEXT */
    H made = CALL(84, H, (H, I *))(context, &code);
    if (!made)
        return;
    CALL(44, I, (H))(*event);
    CALL(85, I, (H, I))(made, fault_code);
    *event = made;
}

static const struct { int number; const char *name; void *function; } functions[] = {
#define F(number, name) {number, #name, (void *)my_##name}
    F(4, clCreateContext), F(6, clRetainContext), F(7, clReleaseContext), F(9, clCreateCommandQueue),
    F(10, clRetainCommandQueue), F(11, clReleaseCommandQueue), F(14, clCreateBuffer), F(17, clRetainMemObject),
    F(18, clReleaseMemObject), F(26, clCreateProgramWithSource), F(27, clCreateProgramWithBinary),
    F(28, clRetainProgram), F(29, clReleaseProgram), F(30, clBuildProgram), F(32, clGetProgramInfo),
    F(33, clGetProgramBuildInfo), F(34, clCreateKernel), F(35, clCreateKernelsInProgram), F(36, clRetainKernel), F(37, clReleaseKernel),
    F(38, clSetKernelArg), F(39, clGetKernelInfo), F(40, clGetKernelWorkGroupInfo), F(41, clWaitForEvents),
    F(42, clGetEventInfo), F(43, clRetainEvent), F(44, clReleaseEvent), F(46, clFlush), F(47, clFinish),
    F(48, clEnqueueReadBuffer), F(49, clEnqueueWriteBuffer), F(50, clEnqueueCopyBuffer), F(56, clEnqueueMapBuffer),
    F(58, clEnqueueUnmapMemObject), F(59, clEnqueueNDRangeKernel), F(82, clCreateSubBuffer), F(84, clCreateUserEvent),
    F(85, clSetUserEventStatus), F(102, clEnqueueFillBuffer), F(104, clEnqueueMigrateMemObjects),
    F(105, clEnqueueMarkerWithWaitList), F(106, clEnqueueBarrierWithWaitList),
    F(123, clCreateCommandQueueWithProperties), F(126, clSVMAlloc), F(129, clEnqueueSVMMemcpy),
    F(134, clSetKernelArgSVMPointer),
};
enum { FUNCTIONS = sizeof functions / sizeof *functions };

static const char *name_of(int function)
{
    for (int i = 0; i < FUNCTIONS; i++)
        if (functions[i].number == function)
            return functions[i].name;
    return "unknown";
}

/* What the tests call. */
const char *fault_name(int i) { return i < FUNCTIONS ? functions[i].name : NULL; }
int64_t fault_calls(int i) { return calls[functions[i].number]; }
int64_t fault_live(int kind) { return live[kind]; }
int fault_hit(void) { return fault_hits; }
void fault_arm(int on) { armed = on; }

void fault_clear(void)
{
    fault_function = -1;
    fault_hits = 0;
    memset(calls, 0, sizeof calls);
}

void fault_set(int i, int64_t first, int64_t last, int action, int code)
{
    fault_clear();
    fault_first = first;
    fault_last = last;
    fault_action = action;
    fault_code = code;
    fault_function = functions[i].number;
}

/* In child processes: CLROPE_TEST_FAULT=function:first:last:action:code */
static void from_environment(void)
{
    const char *text = getenv("CLROPE_TEST_FAULT");
    char name[64];
    long first, last;
    int action, code;
    if (!text || sscanf(text, "%63[^:]:%ld:%ld:%d:%d", name, &first, &last, &action, &code) != 5)
        return;
    for (int i = 0; i < FUNCTIONS; i++)
        if (!strcmp(name, functions[i].name))
            fault_set(i, first, last, action, code);
}

I clGetLayerInfo(U name, Z size, void *value, Z *real)
{
    if (name != 0x4240) /* CL_LAYER_API_VERSION */
        return -30;
    if (value && size >= sizeof(U))
        *(U *)value = 100;
    if (real)
        *real = sizeof(U);
    return 0;
}

I clInitLayer(U entries, void *const *below, U *filled, void *const **above)
{
    if (!below || !filled || !above || entries <= 134 || entries > MOST)
        return -30;
    target = below;
    memcpy(table, below, entries * sizeof *table);
    for (int i = 0; i < FUNCTIONS; i++)
        table[functions[i].number] = functions[i].function;
    table[3] = (void *)my_clGetDeviceInfo;
    *filled = entries;
    *above = table;
    from_environment();
    return 0;
}
