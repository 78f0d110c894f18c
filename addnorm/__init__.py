"""One import name for the four folders beside this one: addnorm.service, addnorm.model, addnorm.export, addnorm.load."""
