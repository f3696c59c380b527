# The job templates of templates/slurm and templates/kubernetes, inside the program: a job can be
# written wherever it is copied.
foreach(kind slurm kubernetes)
  file(GLOB found CONFIGURE_DEPENDS RELATIVE ${CMAKE_CURRENT_SOURCE_DIR}/templates
    ${CMAKE_CURRENT_SOURCE_DIR}/templates/${kind}/*)
  list(APPEND job_templates ${found})
endforeach()
set(template_source "#include \"launcher/job_template.h\"\nnamespace mtl {\n"
  "const std::vector<JobTemplate>& built_in_job_templates() {\n"
  "  static const std::vector<JobTemplate> kTemplates = {\n")
string(CONCAT template_source ${template_source})
foreach(name ${job_templates})
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS
    ${CMAKE_CURRENT_SOURCE_DIR}/templates/${name})
  file(READ ${CMAKE_CURRENT_SOURCE_DIR}/templates/${name} text)
  string(APPEND template_source "    {\"${name}\", {}, R\"template(${text})template\"},\n")
endforeach()
string(APPEND template_source "  };\n  return kTemplates;\n}\n}  // namespace mtl\n")
file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/generated/job_templates.cpp CONTENT "${template_source}"
  @ONLY)
target_sources(mtl_launcher PRIVATE ${CMAKE_BINARY_DIR}/generated/job_templates.cpp)
