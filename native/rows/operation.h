// Includes for the file of an operation on rows. Such a file has two halves: the kernel, which each instruction set
// compiles (rows.cpp), and the operation that programs record, which is compiled once (pass/operations.h).
#pragma once
#ifdef INFLIGHT_ISA
#include "rows/row_loops.h"
#else
#include "pass/arguments.h"
#include "pass/prepared_pass.h"
#include "weights/packed.h"
#endif
