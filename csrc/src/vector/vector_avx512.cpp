#define FORERUN_VECTOR_SET avx512_vector_set
#include "vector_impl.h"
