# Read by ctest, behind the lists of tests that the programs have written: who waits for whom.

# A SLURM takes a second to come and waits most of the time: two at a time.
set(lane 0)
foreach(test IN LISTS test_slurm_TESTS)
  set_tests_properties("${test}" PROPERTIES RESOURCE_LOCK slurm_${lane})
  math(EXPR lane "1 - ${lane}")
endforeach()
