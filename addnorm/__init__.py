"""One import name for the folders beside this one.

They are addnorm.service, addnorm.model, addnorm.export, addnorm.corpus, addnorm.cluster and
addnorm.load.
"""
