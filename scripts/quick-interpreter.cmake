# Bitcoin Core's script interpreter for tests alone, compiled in a third of the time: with fewer optimisations, and with
# several sources as one, so that their headers are read once.
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O1" CACHE STRING "")
set(CMAKE_C_FLAGS_RELWITHDEBINFO "-O1" CACHE STRING "")
set(CMAKE_UNITY_BUILD ON CACHE BOOL "")
set(CMAKE_UNITY_BUILD_BATCH_SIZE 8 CACHE STRING "")
