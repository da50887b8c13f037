"""How the demo pair in `model_repository/tandem/1/` is made and measured."""
