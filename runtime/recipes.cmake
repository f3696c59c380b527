# The recipes of templates/recipes, inside the program: `mtl recipes` has them wherever it is copied.
file(GLOB recipe_files CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/templates/recipes/*.yaml)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${recipe_files})
set(recipe_source "#include \"runtime/recipes.h\"\nnamespace mtl {\n"
  "const std::vector<RecipeFile>& recipe_files() {\n"
  "  static const std::vector<RecipeFile> kFiles = {\n")
string(CONCAT recipe_source ${recipe_source})
foreach(file ${recipe_files})
  get_filename_component(name ${file} NAME)
  string(REGEX REPLACE "\\.yaml$" "" name ${name})
  file(READ ${file} text)
  string(APPEND recipe_source "    {\"${name}\", R\"recipe(${text})recipe\"},\n")
endforeach()
string(APPEND recipe_source "  };\n  return kFiles;\n}\n}  // namespace mtl\n")
file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/generated/recipe_files.cpp CONTENT "${recipe_source}" @ONLY)
target_sources(mtl_runtime PRIVATE ${CMAKE_BINARY_DIR}/generated/recipe_files.cpp)
