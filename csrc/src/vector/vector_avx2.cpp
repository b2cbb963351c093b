#define FORERUN_VECTOR_SET avx2_vector_set
#include "vector_impl.h"
