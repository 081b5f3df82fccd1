"""The generated prompt set: material, templates, layout."""
